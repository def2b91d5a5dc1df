"""The lesson of `minitrain.precision.master_weights`: which updates vanish in 16 bits, and how a copy keeps them."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm import World
from minitrain.costs import precision as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision.formats import BFLOAT16, FLOAT16, Format
from minitrain.precision.master_weights import MasterWeights


def demo(world: World) -> list[Claim]:
    """Adds updates of many sizes to every significand; the table counts those that vanish, and what a copy changes."""
    rows = Rows("Micikevicius et al. 2018, §3.1")
    for each, dtype in ((FLOAT16, torch.float16), (BFLOAT16, torch.bfloat16)):
        count, low = 2**each.mantissa, costs.always_lost_below(each.mantissa)
        what = "significands that stay, update of 2^−(m+2) of the weight; all of them"
        rows.add(what, "2^m", count, vanished(low, each, dtype), "1", case=each.name)
        what, ratio = "significands that stay, updates between the two limits", costs.never_lost_above(each.mantissa)
        formula = "#{k: (1 + k/2^m) · ratio < 2^−(m+1), or = and k even}"
        for share in (5 / 8, 1.0, 1 + 2**-6):
            between = costs.lost(share * ratio, each.mantissa)
            found = vanished(share * ratio, each, dtype)
            rows.add(what, formula, between, found, "1", case=f"{each.name}, {share} of the upper limit")
        steps, update = 2 * count, 2.0 ** -(each.mantissa + 1)
        what, found = "weight after updates of u, without a copy in float32", trained(dtype, steps, update, False)
        rows.add(what, "1", 1, found, "1", case=each.name)
        what, found = "weight after updates of u, with a copy in float32", trained(dtype, steps, update, True)
        rows.add(what, "1 + steps · u", 1 + steps * update, found, "1", case=each.name)
    return rows.claims()


def vanished(ratio: float, each: Format, dtype: torch.dtype) -> int:
    """How many of the numbers in [1, 2) stay as they are when `ratio` times themselves is added, and rounded."""
    weights = 1 + torch.arange(2**each.mantissa, dtype=torch.float64) / 2**each.mantissa
    return int((((1 + ratio) * weights).to(dtype).double() == weights).sum())


def trained(dtype: torch.dtype, steps: int, update: float, masters: bool) -> float:
    """A weight of 1 after so many SGD steps that each add `update`."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    module.to(dtype)
    plain = torch.optim.SGD(module.parameters(), lr=update)
    optimizer = MasterWeights(module, torch.optim.SGD, lr=update) if masters else plain
    for _ in range(steps):
        module.weight.grad = torch.full_like(module.weight, -1)
        optimizer.step()
    return module.weight.item()
