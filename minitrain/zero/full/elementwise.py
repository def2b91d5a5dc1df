"""Which optimizers can step on flat shards: those that treat every element by itself, and those that are told more.

A shard is a piece of a flat line: it has neither the shapes of the tensors in it nor the values of the other ranks.
Adam or SGD need neither. An optimizer whose step for one element depends on other elements of its tensor would silently
compute something else, unless it has a method `share_layers`, as those of `minitrain.optimizers.full` have: it tells
them what lies in a shard and which ranks have the rest. This holds for all stages of ZeRO alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

if TYPE_CHECKING:
    from minitrain.comm.comm import Comm
    from minitrain.zero.full.flat_shards import FlatShard

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
)

# How each of torch's optimizers that mixes the elements of a tensor does so, and what can be used instead.
MIXING: dict[type[optim.Optimizer], tuple[str, str]] = {
    optim.Adafactor: ("it keeps means over the rows and columns of a matrix", "minitrain.optimizers.Adafactor"),
    optim.Muon: ("it makes the update of a whole matrix orthogonal", "minitrain.optimizers.Muon"),
    optim.LBFGS: ("it takes inner products of whole gradients", "one like AdamW"),
    optim.SparseAdam: ("it wants sparse gradients, which a flat line cannot hold", "one like AdamW"),
}
WHOLE = "or data parallelism without ZeRO (stage 0), where each rank steps whole tensors"


def check_elementwise(optimizer_class: type[optim.Optimizer], options: Mapping[str, Any]) -> None:
    """Refuse an optimizer whose step mixes the elements of a tensor: torch's own are known, others are tried.

    Raises:
        ValueError: The step mixes elements, or the trial failed.
    """
    name = optimizer_class.__name__
    if hasattr(optimizer_class, "share_layers"):
        return  # `share_layers` tells it what a shard has of which tensor
    for known, (reason, instead) in MIXING.items():
        if issubclass(optimizer_class, known):
            raise ValueError(
                f"optimizer_class={name} cannot step on flat shards: {reason}; use {instead} with any stage, {WHOLE}"
            )
    # A subclass that keeps its parent's step counts as its parent.
    if any(optimizer_class.step is known.step for known in ELEMENTWISE):
        return
    try:
        # As on two ranks: only if two flat halves step like the whole matrix can states be sharded.
        mixes = _trial(optimizer_class, options)
    except Exception as error:
        raise ValueError(f"optimizer_class={name} failed on a flat tensor of 128 elements: {error}") from error
    if mixes:
        raise ValueError(
            f"optimizer_class={name} cannot step on flat shards: on two halves of a matrix it does something else than "
            f"on the whole, so its step mixes the elements of a tensor; use one like AdamW with any stage, {WHOLE}"
        )


def share_layers(optimizer: Any, lines: Sequence[Sequence[FlatShard]], comm: Comm) -> None:
    """Give an optimizer that needs more than single elements the shards of each group, and say what lies in them."""
    pieces = [{line.master: line.partition.pieces(line.rank) for line in its} for its in lines]
    # Parameters are where ranks can send from.
    device = next((line.flat.device for its in lines for line in its), None)
    optimizer.share_layers(pieces, comm, device)


def _trial(optimizer_class: type[optim.Optimizer], options: Mapping[str, Any], steps: int = 3) -> bool:
    """Whether the step of a matrix and those of its two halves differ."""
    generator = torch.Generator().manual_seed(0)
    # float64, so that rounding stays far below the 1e-9 of the comparison.
    values = torch.randn(8, 32, generator=generator, dtype=torch.float64)
    whole, *halves = (nn.Parameter(part.clone()) for part in (values, *values.flatten().chunk(2)))
    optimizers = [optimizer_class([part], **options) for part in (whole, *halves)]
    for step in range(steps):
        # Each step's gradient has a different size, which reveals a division by a norm.
        gradient = 10.0**step * torch.randn(8, 32, generator=generator, dtype=torch.float64)
        for part, its in zip((whole, *halves), (gradient, *gradient.flatten().chunk(2)), strict=True):
            part.grad = its.clone()
        for optimizer in optimizers:
            optimizer.step()
    return not torch.allclose(torch.cat([half.detach() for half in halves]), whole.detach().flatten(), rtol=1e-9)
