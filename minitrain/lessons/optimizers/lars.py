"""The lesson of `minitrain.optimizers.lars`: the paper's formulas, and bytes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.lars import LARS


def demo(world: World) -> list[Claim]:
    """Steps a 2 × 3 matrix and some layers with LARS; the table shows formulas and bytes."""
    lr, eta, momentum, decay = 0.5, 0.2, 0.8, 0.3  # γ, η, m and β
    rows = Rows("You et al. 2017, algorithm 1")
    make = partial(LARS, lr=lr, momentum=momentum, weight_decay=decay, eta=eta)
    theta, gradients = common.example(world)
    lrs = [lr, lr / 2, lr / 4]
    found, right = common.stepped(make, theta, gradients, lrs), by_hand(theta, gradients, lrs, momentum, decay, eta)
    rows.near(common.PAPER, found, right, common.bound(3, 6), "w − v, v = mv + γλ(g + βw)", rows.source)
    common.held(rows, world, make, costs.lars, "wE")
    return rows.claims()


def by_hand(w: Tensor, gradients: list[Tensor], lrs: list[float], momentum: float, decay: float, eta: float):
    """w after each step: You et al. 2017, algorithm 1; each step has its own global rate."""
    found, v = [], torch.zeros_like(w)
    for g, lr in zip(gradients, lrs, strict=True):
        v = momentum * v + lr * eta * w.norm() / (g.norm() + decay * w.norm()) * (g + decay * w)
        w = w - v
        found.append(w)
    return found
