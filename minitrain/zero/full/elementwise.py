"""Which optimizers can step on flat shards: those that treat every element by itself.

A shard is a piece of a flat line: it has neither the shapes of the tensors in it nor the values of the other ranks.
Adam or SGD need neither. An optimizer whose step for one element depends on other elements of its tensor would silently
compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn, optim

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

# How each of torch's optimizers that mixes the elements of a tensor does so.
MIXING: dict[type[optim.Optimizer], str] = {
    optim.Adafactor: "it keeps means over the rows and columns of a matrix",
    optim.Muon: "it makes the update of a whole matrix orthogonal",
    optim.LBFGS: "it takes inner products of whole gradients",
    optim.SparseAdam: "it wants sparse gradients, which a flat line cannot hold",
}


def check_elementwise(optimizer_class: type[optim.Optimizer], options: Mapping[str, Any]) -> None:
    """Refuse an optimizer whose step mixes the elements of a tensor.

    Torch's own are known. Any other is tried on a small matrix: stepped whole, and as two flat halves by two
    optimizers, as on two ranks. Only if both give the same can its states be sharded.

    Raises:
        ValueError: The step mixes elements, or the trial failed.
    """
    name = optimizer_class.__name__
    if hasattr(optimizer_class, "share_layers"):
        return  # it is told what of which layer a shard has
    for known, reason in MIXING.items():
        if issubclass(optimizer_class, known):
            raise ValueError(f"optimizer_class={name} cannot step on flat shards: {reason}; use one like AdamW")
    # A subclass that keeps its parent's step counts as its parent.
    if any(optimizer_class.step is known.step for known in ELEMENTWISE):
        return
    try:
        mixes = _trial(optimizer_class, options)
    except Exception as error:
        raise ValueError(f"optimizer_class={name} failed on a flat tensor of 128 elements: {error}") from error
    if mixes:
        raise ValueError(
            f"optimizer_class={name} cannot step on flat shards: on two halves of a matrix it does something else than "
            "on the whole, so its step mixes the elements of a tensor; use one like AdamW"
        )


def _trial(optimizer_class: type[optim.Optimizer], options: Mapping[str, Any], steps: int = 3) -> bool:
    """Whether the step of a matrix and those of its two halves differ."""
    generator = torch.Generator().manual_seed(0)
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
