"""The lesson of `minitrain.optimizers.sm3`: both versions by hand, and the bytes of their states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.sm3 import SM3, sm3_i, sm3_ii


def demo(world: World) -> list[Claim]:
    """Steps matrices and vectors with SM3; the table shows formulas and bytes."""
    rows, lr = Rows("Anil et al. 2019"), 0.1
    theta, gradients = common.example(world)
    for name, version, bounds in (("SM3-I", sm3_i, bounds_i), ("SM3-II", sm3_ii, bounds_ii)):
        found = common.stepped(partial(SM3, lr=lr, version=version), theta, gradients)
        right = by_hand(theta, gradients, lr, bounds)
        rows.near(common.PAPER, found, right, common.bound(3, 6), "w − η g / √ν", rows.source, name)
    common.held(rows, world, SM3, costs.sm3, "w(r + c); wE for a vector", (*common.SHAPES, (3, 4, 5)))
    return rows.claims()


def by_hand(w: Tensor, gradients: list[Tensor], lr: float, bounds: Callable[[list[Tensor]], Tensor]) -> list[Tensor]:
    """w after each step."""
    found = []
    for t, g in enumerate(gradients, 1):
        w = w - lr * g / bounds(gradients[:t]).sqrt()
        found.append(w)
    return found


def bounds_i(gradients: list[Tensor]) -> Tensor:
    """ν of SM3-I: Σ of the largest squares of the row, or of the column if that is less."""
    squares = torch.stack(gradients) ** 2  # (steps, r, c)
    return torch.minimum(squares.amax(2, keepdim=True).sum(0), squares.amax(1, keepdim=True).sum(0))


def bounds_ii(gradients: list[Tensor]) -> Tensor:
    """ν of SM3-II: the smaller of the largest in the row and in the column of the step before, plus g²."""
    nu = torch.zeros_like(gradients[0])
    for g in gradients:
        nu = torch.minimum(nu.amax(1, keepdim=True), nu.amax(0, keepdim=True)) + g**2
    return nu
