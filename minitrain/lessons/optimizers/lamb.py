"""The lesson of `minitrain.optimizers.lamb`: the paper's formulas, what the ratio does, and norms of divided layers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.optimizers.layer_wise import layer_wise
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.lamb import LAMB


def demo(world: World) -> list[Claim]:
    """Steps a 2 × 3 matrix and some layers with LAMB; the table shows formulas, scales, bytes, and ZeRO-1."""
    lr, decay, eps = 0.1, 0.3, 0.05  # α, λ, and ε, which is large enough to matter
    rows, make = Rows("You et al. 2020, algorithm 2"), partial(LAMB, lr=lr, eps=eps, weight_decay=decay)
    theta, gradients = common.example(world)
    norm, formula = float(theta.norm()), "x − α φ(‖x‖) (r + λx) / ‖r + λx‖"
    for case, phi in (("φ(z) = z", (0.0, float("inf"))), ("φ(z) ≤ ‖x‖/2", (0.0, norm / 2))):
        found = common.stepped(partial(make, phi=phi), theta, gradients)
        right = by_hand(theta, gradients, lr, eps, decay, phi)
        rows.near(common.PAPER, found, right, common.bound(3, 6), formula, rows.source, case)
    common.held(rows, world, make, costs.lamb, "2wE")
    layer_wise(rows, world, make, partial(make, eps=0.0, weight_decay=0.0))
    return rows.claims()


def by_hand(x: Tensor, gradients: list[Tensor], lr: float, eps: float, decay: float, phi: tuple) -> list[Tensor]:
    """x after each step: You et al. 2020, algorithm 2."""
    found = []
    for t in range(1, len(gradients) + 1):
        m, v = means(gradients[:t], (0.9, 0.999))
        update = m / (v.sqrt() + eps) + decay * x
        x = x - lr * x.norm().clamp(*phi) / update.norm() * update
        found.append(x)
    return found


def means(gradients: list[Tensor], betas: tuple) -> list[Tensor]:
    """m̂ and v̂ as sums over all gradients so far, Σ (1 − β) β^(t−i) gᵢᵖ / (1 − βᵗ) for p = 1 and p = 2."""
    t = len(gradients)
    return [
        torch.stack([(1 - beta) * beta ** (t - i) * g**p for i, g in enumerate(gradients, 1)]).sum(0) / (1 - beta**t)
        for p, beta in enumerate(betas, 1)
    ]
