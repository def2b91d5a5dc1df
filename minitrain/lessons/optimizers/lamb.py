"""The lesson of `minitrain.optimizers.lamb`: the paper's formulas, what the ratio does, and norms of divided layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.lamb import LAMB
from minitrain.zero.stage1 import Zero1


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


def layer_wise(rows: Rows, world: World, make: Callable[..., Any], bare: common.Make) -> None:
    """Claims on scales and on ZeRO-1; `bare` has neither weight decay nor ε.

    The bound: a sum of E squares has a relative error of at most (E + 1)u in any order, so a ratio of two norms differs
    between both ways by at most 2(E + 4)u of itself, and so does each step.
    """
    theta, gradients = common.example(world)
    what = "elements that change after three steps, λ = 0 and ε = 0: gradients times 2¹⁰; weights times 2⁵, divided out"
    right = common.stepped(bare, theta, gradients)
    for case, weight, factor in (("gradients", 1.0, 2.0**10), ("weights", 2.0**5, 1.0)):
        found = common.stepped(bare, weight * theta, [factor * g for g in gradients])
        rows.equal(what, [each / weight for each in found], right, source=rows.source, case=case)

    inside = partial(Layers, partial(make, sharded=True), world.rank)
    run = common.under_zero1(world, lambda module: Zero1(module, inside), make)
    what = "three steps under ZeRO-1, norms all-reduced: largest difference from one device"
    most = common.roundings(run, 2 * (common.LARGEST + 4))
    rows.near(what, run.parameters, run.right, most, "θ_sharded = θ")
    what = f"bytes of {common.STEPS} steps under ZeRO-1: all-reduces of norms; reduce-scatters, all-gathers"
    predicted = costs.zero1_traffic([*map(math.prod, common.SHAPES)], world.size, norms=2, item=8)
    for verb, formula in (("all_reduce", "2Lw"), ("reduce_scatter", "padded Ψw"), ("all_gather", "padded Ψw")):
        sent = common.STEPS * getattr(predicted, verb)
        rows.add(what, f"{common.STEPS} · {formula}", sent, run.ledger.payload(verb), "B", "derived", case=verb)


class Layers:
    """Between a flat shard and an optimizer of layers, which gets this rank's part of each; some parts are empty."""

    def __init__(self, make: common.Make, rank: int, shards: list[Tensor]):
        (self.shard,) = shards
        start, most = rank * self.shard.numel(), self.shard.numel()
        edges = [min(max(edge - start, 0), most) for edge in accumulate(map(math.prod, common.SHAPES), initial=0)]
        self.ranges = [slice(low, high) for low, high in pairwise(edges)]
        self.parts = [self.shard[each] for each in self.ranges]
        self.optimizer = make(self.parts)

    def step(self) -> None:
        for part, each in zip(self.parts, self.ranges, strict=True):
            part.grad = self.shard.grad[each]  # type: ignore[index]
        self.optimizer.step()
