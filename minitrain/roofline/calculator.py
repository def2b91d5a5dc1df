"""The calculator of a training run: what a layout computes, holds and sends on each device, how long it takes, and MFU.

**Idea.** Operations divided by FLOP/s, and bytes divided by bytes per second, are times; bytes per device fit, or they
don't. A few lines of arithmetic therefore tell which layouts of a model are worth trying before any device is rented.
**Source.** Kaplan et al. 2020, §2.1, for 6N; Narayanan et al. 2021, §3 and §5.1, for time, messages and days;
Korthikanti et al. 2022, §4, for activations; Rajbhandari et al. 2020, "ZeRO", §5 and §7.
**Cost.** Nothing is run. Left out is what is small in a large model: operations other than matrix products, logits, the
messages of the vocabulary's shards, the layer that is computed again, and that the first and the last stage have the
tables. Attention counts every pair of tokens. `minitrain.costs` has these, and `minitrain.planning` tries all layouts.
Also called back-of-the-envelope or napkin math, transformer math.
"""

from __future__ import annotations

from typing import NamedTuple


class Model(NamedTuple):
    layers: int
    hidden: int
    vocabulary: int
    seq: int
    tied: bool = True  # the head is the table of tokens


class Run(NamedTuple):
    """Steps of `batch` sequences on `data` · `tensor` · `pipeline` devices."""

    batch: int
    micro_batches: int = 1  # of a step, one after the other through the same devices
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0  # ZeRO's stage, over the data-parallel ranks
    recompute: bool = False  # each layer's forward once more, in backward
    item: int = 2  # bytes of a weight, a gradient, an activation
    states: int = 12  # bytes of optimizer states for each parameter: a copy in float32, and Adam's two


class Device(NamedTuple):
    flops: float  # in a second, at its peak
    link: float  # bytes per second that leave it
    reached: float = 0.5  # the part of the peak that products reach


def parameters(model: Model) -> int:
    layers, hidden, vocabulary, positions, tied = model
    # A layer has 4h² numbers in attention and 8h² in the MLP; 13h are biases and norms, 2h the last norm.
    return layers * (12 * hidden**2 + 13 * hidden) + ((2 - tied) * vocabulary + positions + 2) * hidden


def flops(model: Model, batch: int) -> float:
    """Operations of a step: 6 per token and matrix entry, and attention's."""
    layers, hidden, vocabulary, seq, _ = model
    # Tables are looked up, and not multiplied; a head is.
    matrices = 12 * layers * hidden**2 + vocabulary * hidden
    # Every token with every other: scores, and the sum of values. 2 · 2sh forward, twice as many backward.
    return batch * seq * (6 * matrices + 12 * layers * seq * hidden)


def held(model: Model, run: Run) -> dict[str, float]:
    """Bytes on the fullest device of a pipeline, its first."""
    mine = parameters(model) / (run.tensor * run.pipeline)
    # The ZeRO stage from which each is sharded, and bytes per parameter.
    kinds = {"weights": (3, run.item), "gradients": (2, run.item), "optimizer states": (1, run.states)}
    states = {kind: mine * each / (run.data if run.zero >= stage else 1) for kind, (stage, each) in kinds.items()}
    one = run.batch / (run.data * run.micro_batches) * model.seq * model.hidden * run.item
    # Of 16 such tensors per layer, tensor parallelism divides 12; inputs of norms and of the next matrices stay whole.
    layer = one if run.recompute else (4 + 12 / run.tensor) * one
    # 1F1B begins as many micro-batches as there are stages before the first backward.
    return states | {"activations": min(run.pipeline, run.micro_batches) * model.layers / run.pipeline * layer}


def sent(model: Model, run: Run) -> dict[str, float]:
    """Bytes that leave the busiest device in a step; all-reduces counted as rings."""
    tokens = run.batch / run.data * model.seq * model.hidden * run.item
    # A reduce-scatter and an all-gather are an all-reduce. Stage 2 sends each micro-batch's gradients, 3 also weights.
    rounds = (2, 2, run.micro_batches + 1, 3 * run.micro_batches)[run.zero]
    return {
        "data": rounds * (run.data - 1) / run.data * parameters(model) / (run.tensor * run.pipeline) * run.item,
        # Attention and MLP have an all-reduce each, forward and backward.
        "tensor": 4 * model.layers / run.pipeline * 2 * (run.tensor - 1) / run.tensor * tokens,
        # A stage in the middle sends activations on and their gradients back.
        "pipeline": min(2, run.pipeline - 1) * tokens,
    }


def seconds(model: Model, run: Run, device: Device) -> dict[str, float]:
    """Of a step, one part after the other; what hides behind products is left out."""
    devices = run.data * run.tensor * run.pipeline
    products = flops(model, run.batch) * (8 if run.recompute else 6) / 6 / (devices * device.reached * device.flops)
    wire = {kind: leaving / device.link for kind, leaving in sent(model, run).items()}
    # Backward is two thirds; below stage 2, gradients leave in that of the last micro-batch.
    backward = 2 / 3 * products / (run.micro_batches if run.zero < 2 else 1)
    # Between stages, one micro-batch travels while another is computed.
    return {
        "products": products,
        "bubble": (run.pipeline - 1) / run.micro_batches * products,
        "tensor": wire["tensor"],
        "data": max(0.0, wire["data"] - backward),
    }


def days(model: Model, run: Run, device: Device, tokens: float) -> float:
    return tokens / (run.batch * model.seq) * sum(seconds(model, run, device).values()) / 86400


def mfu(model: Model, run: Run, device: Device) -> float:
    """Model FLOPs utilization: operations of the model, recomputed ones not counted, over those at peak."""
    peak = run.data * run.tensor * run.pipeline * device.flops
    return flops(model, run.batch) / (sum(seconds(model, run, device).values()) * peak)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
