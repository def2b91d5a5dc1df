"""The lesson of `minitrain.planning.memory_model`: what real ranks hold, byte by byte, and what the dry run says."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from minitrain.comm import SavedActivations, World
from minitrain.comm.memory import storage_bytes
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import Training
from minitrain.data.text import Samples
from minitrain.lessons.claims import Claim, fold
from minitrain.models import counter_rng
from minitrain.planning.memory_model import GPT, held
from minitrain.planning.plan import Coordinate, predict
from minitrain.train import build, train_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZERO, KORTHIKANTI = "Rajbhandari et al. 2020, §5", "Korthikanti et al. 2022, §4"


def demo(world: World, hidden: int = 12) -> list[Claim]:
    """Trains a small GPT on all ranks, in several layouts; the table shows what each holds, next to the closed forms.

    Args:
        hidden: Width of the GPT, a multiple of 4.
    """
    world.figure(picture)
    n = world.size
    # More layers than ranks, so that stages are uneven, and a vocabulary that nothing divides.
    gpt = GPT(L=n + 1, h=hidden, a=4, s=7, V=259)
    states = {}
    for zero in (0, 1, 2, 3):
        name, formula = f"ZeRO {zero}", "4w or 4ns of weights, gradients, and 8s + c of states for each flat buffer"
        predicted, measured = in_a_layout(world, gpt, Layout(dp=n, zero=zero))
        states[name] = Claim("", formula, predicted, measured, "B", ZERO)
    predicted, measured = in_a_layout(world, gpt, Layout(pp=n, microbatches=2))
    stage = Claim(
        "bytes of weights and states of this stage", "the same, of its layers", predicted, measured, "B", ZERO
    )
    kept = {}
    for full in (False, True):
        predicted, measured = activations(world, gpt._replace(L=1), full)
        name, formula = "full recomputation" if full else "no recomputation", "16bsh + 4bs + abs of a layer, and ends"
        # CUDA's kernel fills each head's numbers per row up to a multiple of 32, and keeps 16 bytes of random state.
        slack = 0 if full or world.device.type == "cpu" else 4 * 2 * gpt.a * (-gpt.s % 32) + 16
        kept[name] = Claim("", formula, predicted, measured, "B", KORTHIKANTI, absolute=slack)
    return [
        fold("bytes of weights, gradients (stages 0, 1) and states, ZeRO's four stages on all ranks", states, key=True),
        stage,
        fold("bytes that forward of two sequences keeps, without and with full recomputation", kept, key=True),
        like_the_dry_run(gpt),
    ]


def settings_of(gpt: GPT, layout: Layout, batch: int) -> Settings:
    """The trainer's settings."""
    model = Model(layers=gpt.L, hidden=gpt.h, heads=gpt.a, positions=gpt.s, vocabulary=gpt.V)
    return Settings(model, layout, Steps(batch=batch))


def in_a_layout(world: World, gpt: GPT, layout: Layout) -> tuple[int, int]:
    """Bytes of states after a training step on this rank, predicted and measured; gradients where ranks keep them."""
    settings = settings_of(gpt, layout, 2 * world.size)
    text = torch.randint(0, 256, (2000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with closing(build(settings, world.device)) as training:
        train_step(training, 0, 0, Samples(text, gpt.s))
        measured, stage = states(training), training.axes.place["pp"]
    predicted = held(gpt, stage, layout.pp, layout.dp, 1, layout.microbatches, layout.zero, c=layout.cp)
    kinds = ("parameters", "gradients", "optimizer states") if layout.zero < 2 else ("parameters", "optimizer states")
    return sum(predicted[kind] for kind in kinds), measured


def states(training: Training) -> int:
    """Bytes of weights and optimizer states that are in memory, and of gradients unless ZeRO has freed them."""
    stage, seen = training.settings.layout.zero, set[int]()
    lines = [line for shards in training.gradients.shards for line in shards.lines]
    tensors = [line.shard if stage == 3 else line.flat for line in lines] + [line.master for line in lines]
    for shards in training.gradients.shards:
        tensors += [tensor for state in shards.optimizer.state.values() for tensor in state.values()]
    if stage < 2:
        tensors += [parameter.grad for parameter in training.part.parameters.values()]
    return storage_bytes(tensors, seen)


def activations(world: World, gpt: GPT, full: bool) -> tuple[int, int]:
    """Bytes that forward of two sequences keeps on this rank, predicted and measured."""
    settings = settings_of(gpt, Layout(dp=world.size, recompute="full" if full else "none"), 2 * world.size)
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randint(256, (2, gpt.s), generator=generator).to(world.device) for _ in range(2))
    with closing(build(settings, world.device)) as training:
        assert training.part.whole is not None
        counter_rng.set_position(seed=0, step=0)
        with SavedActivations(training.part.whole) as saved:
            training.gradients.model(inputs, targets)
    # What comes back in backward is less than what the loss has freed by then, so the peak is the end of forward.
    return held(gpt, 0, d=world.size, b=2, full=full)["activations"], saved.bytes


def like_the_dry_run(gpt: GPT) -> Claim:
    """The claim on all bytes of all stages of many layouts, of a small GPT and of GPT-3."""
    different = 0
    for of, p, d, m, zero, full in product(
        (gpt._replace(L=5), GPT(96, 12288, 96, 2048, 50257)), (1, 3), (1, 5), (4,), (0, 1, 2, 3), (False, True)
    ):
        layout = Layout(dp=d, pp=p, zero=zero, microbatches=m, recompute="full" if full else "none")  # type: ignore[arg-type]
        settings = settings_of(of, layout, 2 * d * m)
        if zero > 1 and p > 1:
            continue  # the trainer does not have these together
        for i in range(p):
            right = predict(settings.model, layout, settings.steps, Coordinate(pp=i)).held
            different += held(of, i, p, d, 2, m, zero, full) != right
    what = "stages for which dry run and one screen differ, in 24 layouts of two models"
    return Claim(what, "0", 0, different, source="derived", how="compared", key=True)


def picture() -> Figure:
    """What a GPU holds of a GPT with 1.3 billion parameters, by layout."""
    from matplotlib.figure import Figure

    gpt = GPT(24, 2048, 16, 2048, 50257)
    layouts: dict[str, dict[str, Any]] = {
        "one GPU": {"i": 0},
        "full\nrecomputation": {"i": 0, "full": True},
        **{f"8 GPUs\nZeRO {zero}": {"i": 0, "d": 8, "zero": zero} for zero in (1, 2, 3)},
        **{f"8 stages\nstage {i}": {"p": 8, "i": i, "m": 16} for i in (0, 7)},
    }
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes, bottom = figure.subplots(), [0.0] * len(layouts)
    found = [held(gpt, **layout) for layout in layouts.values()]
    for kind in found[0]:
        heights = [each[kind] / 1e9 for each in found]
        axes.bar(list(layouts), heights, bottom=bottom, label=kind)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(ylabel="GB on a GPU", title="1.3 · 10⁹ parameters, float32, micro-batches of one sequence of 2,048")
    axes.legend()
    return figure
