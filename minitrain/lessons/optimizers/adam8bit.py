"""The lesson of `minitrain.optimizers.adam8bit`: its rounding, its bytes, and where a shard may be cut."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers import adam8bit
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.zero.stage1 import Zero1


def demo(world: World) -> list[Claim]:
    """Steps tensors with 8-bit Adam; the table shows formulas, its rounding, bytes, and ZeRO-1 cut between blocks."""
    lr, block = 0.1, 64  # numbers that share a scale
    rows, make = Rows("Dettmers et al. 2021, §1.3 and §2"), partial(Adam8bit, lr=lr, block=block)
    theta, gradients = common.example(world)
    found, right = common.stepped(partial(make, block=4), theta, gradients), by_hand(theta, gradients, lr, 4)
    rows.near(common.PAPER, found, right, common.bound(3, 6), "Adam, m and v rounded after each step", rows.source)
    predict = partial(costs.adam8bit, block=block)
    common.held(rows, world, make, predict, "2E + 8⌈E/B⌉ + 2 KB", more=costs.TABLES_8BIT)

    what = "largest rounding error over the block's largest number; with a sign, and without"
    for signed in (True, False):
        # Three times the numbers from −1 or 0 to 1, as the scale has a part in it. They are 2⁻¹⁶ apart, and the worst
        # case may lie between two: the error is up to 2⁻¹⁷ smaller.
        x = 3 * torch.arange(-(2**16) * signed, 2**16 + 1, dtype=torch.float64, device=world.device) / 2**16
        error = float((rounded(x, adam8bit.table(signed).to(world.device), x.numel()) - x).abs().max()) / 3
        predicted, formula = costs.largest_rounding(signed), "0.9/2⁷" if signed else "0.9/2⁸"
        case, more = "with a sign" if signed else "without", {"how": "compared", "absolute": 2**-17 + 1e-7}
        rows.add(what, formula, predicted, error, "1", "derived", case=case, **more)

    # One tensor of so many blocks that up to 8 ranks get whole ones.
    between = partial(make, block=8)
    run = common.under_zero1(world, lambda module: Zero1(module, between), between, [(840 * 8,)])
    what = "elements that differ after three steps under ZeRO-1 from those on one device"
    rows.equal(what, run.parameters, run.right, "θ_sharded = θ")
    return rows.claims()


def by_hand(theta: Tensor, gradients: list[Tensor], lr: float, block: int) -> list[Tensor]:
    """θ after each step of torch's Adam, whose moments are rounded after it: Dettmers et al. 2021, §2."""
    found, theta = [], theta.clone()
    adam = torch.optim.Adam([theta], lr)
    for g in gradients:
        theta.grad = g
        adam.step()
        found.append(theta.clone())
        for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
            state = adam.state[theta][name]
            state.copy_(nearest(state, adam8bit.table(signed).to(theta.device), block))
    return found


def nearest(x: Tensor, table: Tensor, block: int) -> Tensor:
    """The table's nearest value to each number, in units of the largest magnitude of its block."""
    found = []
    for part in x.flatten().split(block):
        largest = part.abs().max().float()
        found.append(table[(part[:, None] / largest - table).abs().argmin(1)] * largest)
    return torch.cat(found).view_as(x).to(x.dtype)


def rounded(x: Tensor, table: Tensor, block: int) -> Tensor:
    """As it comes back from 8 bits."""
    return adam8bit.dequantize(*adam8bit.quantize(x, table, block), table, block).to(x.dtype)
