"""The lesson of `minitrain.optimizers.adafactor`: formulas, torch's, and what factoring loses."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.adafactor import Adafactor

PAPER = "Shazeer & Stern 2018"


def demo(world: World) -> list[Claim]:
    """Steps matrices and vectors with Adafactor; the table shows formulas, torch's, and bytes."""
    lr = 0.6  # the largest relative step; the third one is bound by 1/√t instead
    rows, make = Rows(f"{PAPER}, §3"), partial(Adafactor, lr=lr)
    theta, gradients = common.example(world)
    small = theta / 100, gradients
    vector = theta.flatten(), [g.flatten() for g in gradients]
    formula, source = "X − α U / max(1, RMS(U)/d)", f"{PAPER}, algorithms 4 and 5"
    for case, (x, its), eps, d in (
        ("a small matrix, large ε₁ and ε₂, d = 0.5", small, (0.3, 0.2), 0.5),
        ("a vector", vector, (1e-30, 1e-3), 1.0),
    ):
        found, right = common.stepped(partial(make, eps=eps, d=d), x, its), by_hand(x, its, lr, eps, d)
        rows.near(common.PAPER, found, right, common.bound(3, 6), formula, source, case)
    common.held(rows, world, make, costs.adafactor, "w(r + c); wE for a vector")
    theirs, source = common.train(world, partial(torch.optim.Adafactor, lr=lr)), "torch.optim.Adafactor"
    what, most = f"five steps: largest difference from {source}", common.bound(5, common.LARGEST)
    rows.near(what, common.train(world, make), theirs, most, "θ_ours = θ_torch", source)

    # Squares of rank one lose nothing: the matrix moves as its numbers do in a vector. Clipping would hide a factor.
    matrix, outer = common.draw(world, (5, 7), 2), common.draw(world, (5, 1), 0) * common.draw(world, (1, 7), 1)
    squares = [size * outer for size in (0.25, 1.0, 0.5)]
    factored = common.stepped(partial(make, d=100.0), matrix, squares)
    plain = common.stepped(partial(make, d=100.0), matrix.flatten(), [g.flatten() for g in squares])
    what = "squares of rank one: largest difference between factored and not factored after three steps"
    rows.near(what, factored[-1].flatten(), plain[-1], common.bound(3, 35), "R Cᵀ / ΣR = V", rows.source)
    return rows.claims()


def by_hand(x: Tensor, gradients: list[Tensor], lr: float, eps: tuple, d: float) -> list[Tensor]:
    """x after each step: Shazeer & Stern 2018, algorithm 4 for a matrix, 5 for a vector."""
    found = []
    for t, g in enumerate(gradients, 1):
        # The weight of step i: 1 − β̂ᵢ = i^−0.8, times β̂ of all later steps.
        weights = [i**-0.8 * math.prod(1 - j**-0.8 for j in range(i + 1, t + 1)) for i in range(1, t + 1)]
        squares = [weight * (each**2 + eps[0]) for weight, each in zip(weights, gradients[:t], strict=True)]
        v = torch.stack(squares).sum(0)
        if x.dim() == 2:
            v = torch.outer(v.sum(1), v.sum(0)) / v.sum()
        u = g / v.sqrt()
        x = x - max(eps[1], rms(x)) * min(lr, t**-0.5) / max(1, rms(u) / d) * u
        found.append(x)
    return found


def rms(x: Tensor) -> float:
    return float(x.norm()) / x.numel() ** 0.5
