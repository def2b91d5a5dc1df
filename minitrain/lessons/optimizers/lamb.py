"""The lesson of `minitrain.optimizers.lamb`: the paper's formulas, what the ratio does, and norms of divided layers."""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate, pairwise

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
    found, right = common.stepped(make, theta, gradients), by_hand(theta, gradients, lr, eps, decay)
    rows.near(common.PAPER, found, right, common.bound(3, 6), "x − α ‖x‖ (r + λx) / ‖r + λx‖", rows.source)
    common.held(rows, world, make, costs.lamb, "2wE")

    what = "elements that change after three steps, λ = 0 and ε = 0: gradients times 2¹⁰; weights times 2⁵, divided out"
    bare = partial(make, eps=0.0, weight_decay=0.0)
    right = common.stepped(bare, theta, gradients)
    for case, weight, factor in (("gradients", 1.0, 2.0**10), ("weights", 2.0**5, 1.0)):
        found = common.stepped(bare, weight * theta, [factor * g for g in gradients])
        rows.equal(what, [each / weight for each in found], right, source=rows.source, case=case)

    inside = partial(Layers, partial(make, sharded=True), world.rank)
    run = common.under_zero1(world, lambda module: Zero1(module, inside), make)
    what = "three steps under ZeRO-1, norms all-reduced: largest difference from one device"
    # A sum of E squares has a relative error of at most (E + 1)u in any order, so a ratio of two norms differs between
    # both ways by at most 2(E + 4)u of itself, and so does each step.
    most = common.roundings(run, 2 * (common.LARGEST + 4))
    rows.near(what, run.parameters, run.right, most, "θ_sharded = θ")
    what = f"bytes of {common.STEPS} steps under ZeRO-1: all-reduces of norms; reduce-scatters, all-gathers"
    predicted = costs.zero1_traffic([*map(math.prod, common.SHAPES)], world.size, norms=2, item=8)
    for verb, formula in (("all_reduce", "2Lw"), ("reduce_scatter", "padded Ψw"), ("all_gather", "padded Ψw")):
        sent = common.STEPS * getattr(predicted, verb)
        rows.add(what, f"{common.STEPS} · {formula}", sent, run.ledger.payload(verb), "B", "derived", case=verb)
    return rows.claims()


def by_hand(x: Tensor, gradients: list[Tensor], lr: float, eps: float, decay: float) -> list[Tensor]:
    """x after each step: You et al. 2020, algorithm 2."""
    found, m, v = [], torch.zeros_like(x), torch.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        update = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + eps) + decay * x
        x = x - lr * x.norm() / update.norm() * update
        found.append(x)
    return found


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
