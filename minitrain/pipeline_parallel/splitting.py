"""Cutting a model into stages: its layers in order, what each of them takes here, and the stages as modules.

**Idea.** A pipeline is as slow as its slowest stage. So measure each layer (`layer_times`), and cut the list of layers
where the largest sum between two cuts is smallest (`planning/partition.py`).

**Source.** Measured times and dynamic programming for pipelines: Narayanan et al. 2019, "PipeDream", §3.1.
**Cost.** A weight shared by layers of two stages exists twice: see `minitrain.pipeline_parallel.full.tied`.
Also called `balance_by_time` (torchgpipe), `partition_method` (DeepSpeed), `split_spec` (torch.distributed.pipelining).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.models.gpt import GPT


class Stage(nn.Sequential):
    """Some layers of a model, one after another; input and output are a tensor or a tuple of tensors.

    Args:
        layers: By their names in the whole model.

    Attributes:
        names: Of the layers in the whole model, such as "blocks.3".
    """

    def __init__(self, layers: dict[str, nn.Module]):
        super().__init__(*layers.values())
        self.names = tuple(layers)

    def forward(self, *inputs: Any) -> Any:  # type: ignore[override]
        """The layers' forward; a layer that follows one with several outputs takes them as several arguments."""
        for layer in self:
            outputs = layer(*inputs)
            inputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return inputs if len(inputs) != 1 else inputs[0]

    def named_in_model(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters by their names in the whole model, such as "blocks.3.mlp.up.weight"."""
        for name, layer in zip(self.names, self, strict=True):
            for rest, parameter in layer.named_parameters():
                yield f"{name}.{rest}", parameter


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that can be cut, by name: of a GPT the embedding, each block, the norm, and the head.

    Args:
        model: A `GPT`, or an `nn.Sequential` (or `nn.ModuleList`) whose members follow each other. What a GPT does
            after its head, `model.loss`, is the pipeline's `loss`.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(model, GPT):
        blocks = {f"blocks.{number}": block for number, block in enumerate(model.blocks)}
        return {"embedding": model.embedding, **blocks, "norm": model.norm, "head": model.head}
    if isinstance(model, (nn.Sequential, nn.ModuleList)):
        return dict(model.named_children())
    raise ValueError(f"model is a {type(model).__name__}, whose order of layers is not known; bring an nn.Sequential")


def split(model: nn.Module, counts: Sequence[int]) -> list[Stage]:
    """Cut a model into stages. They share its parameters; a rank keeps its own stages and forgets the rest.

    Args:
        model: As `layers_of` takes it.
        counts: How many layers each stage gets, such as from `partition` or `evenly`.

    Raises:
        ValueError: The counts are not positive, or do not add up to the number of layers.

    Examples:
        >>> from minitrain.pipeline_parallel import split
        >>> stages = split(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), [2, 1])
    """
    layers = layers_of(model)
    if min(counts, default=0) < 1 or sum(counts) != len(layers):
        raise ValueError(
            f"counts={list(counts)} does not split {len(layers)} layers ({', '.join(layers)}) into stages; "
            f"give numbers from 1 on that add up to {len(layers)}"
        )
    named = list(layers.items())
    cuts = [0, *accumulate(counts)]
    return [Stage(dict(named[begin:end])) for begin, end in pairwise(cuts)]


def evenly(model: nn.Module, stages: int) -> list[int]:
    """Layer counts for `split`: equally many layers each, the first stages one more.

    In a GPT only the blocks are counted; the embedding goes with the first, norm and head with the last.

    Raises:
        ValueError: There are more stages than layers, or fewer than one.
    """
    blocks = len(model.blocks) if isinstance(model, GPT) else len(layers_of(model))
    _check(stages, blocks, "blocks" if isinstance(model, GPT) else "layers")
    counts = [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    if isinstance(model, GPT):
        counts[0] += 1
        counts[-1] += 2
    return counts


def layer_times(model: nn.Module, *inputs: Tensor, repeats: int = 5) -> list[float]:
    """Seconds that forward and backward of each layer take here, one after another: the fastest of `repeats`.

    Existing gradients are left as they are. The last layer's outputs serve as a loss.

    Args:
        model: As `layers_of` takes it.
        *inputs: A micro-batch for its first layer.
        repeats: How often each layer runs.
    """
    times = []
    for layer in layers_of(model).values():
        trainable = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        leaves = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in inputs)
        wanted = [*trainable, *(leaf for leaf in leaves if leaf.requires_grad)]
        fastest, outputs = float("inf"), ()
        for _ in range(repeats):
            _finish(inputs)
            begin = time.perf_counter()
            outputs = layer(*leaves)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            roots = [output for output in outputs if output.requires_grad]
            if roots and wanted:
                torch.autograd.grad(roots, wanted, [torch.ones_like(root) for root in roots], allow_unused=True)
            _finish(inputs)
            fastest = min(fastest, time.perf_counter() - begin)
        times.append(fastest)
        inputs = tuple(output.detach() for output in outputs)
    return times


def _finish(tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_cuda for tensor in tensors):
        torch.accelerator.synchronize()


def _check(stages: int, layers: int, what: str) -> None:
    if stages < 1:
        raise ValueError(f"stages={stages} must be at least 1")
    if stages > layers:
        raise ValueError(f"stages={stages} are more than the {layers} {what}; use at most {layers}, or fewer chunks")


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
