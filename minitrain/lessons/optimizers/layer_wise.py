"""Claims on LARS and LAMB, whose step depends on the norms of layers, of which ranks may have parts only."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.optimizers.common import SHAPES
from minitrain.lessons.rows import Rows
from minitrain.zero.stage1 import Zero1


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
    predicted = costs.zero1_traffic([*map(math.prod, SHAPES)], world.size, norms=2, item=8)
    for verb, formula in (("all_reduce", "2Lw"), ("reduce_scatter", "padded Ψw"), ("all_gather", "padded Ψw")):
        sent = common.STEPS * getattr(predicted, verb)
        rows.add(what, f"{common.STEPS} · {formula}", sent, run.ledger.payload(verb), "B", "derived", case=verb)


class Layers:
    """Between a flat shard and an optimizer of layers, which gets this rank's part of each; some parts are empty."""

    def __init__(self, make: common.Make, rank: int, shards: list[Tensor]):
        (self.shard,) = shards
        start, most = rank * self.shard.numel(), self.shard.numel()
        edges = [min(max(edge - start, 0), most) for edge in accumulate(map(math.prod, SHAPES), initial=0)]
        self.ranges = [slice(low, high) for low, high in pairwise(edges)]
        self.parts = [self.shard[each] for each in self.ranges]
        self.optimizer = make(self.parts)

    def step(self) -> None:
        for part, each in zip(self.parts, self.ranges, strict=True):
            part.grad = self.shard.grad[each]  # type: ignore[index]
        self.optimizer.step()
