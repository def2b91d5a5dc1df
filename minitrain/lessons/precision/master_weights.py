"""The lesson of `minitrain.precision.master_weights`: which updates vanish in 16 bits, and how a copy keeps them."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.precision.formats import BFLOAT16, FLOAT16, Format
from minitrain.precision.master_weights import MasterWeights

PAPER = "Micikevicius et al. 2018, §3.1"
HALVES = ((FLOAT16, torch.float16), (BFLOAT16, torch.bfloat16))


def demo(world: World) -> list[Claim]:
    """Adds updates of many sizes to every significand; the table counts those that vanish, and what a copy costs."""
    always, never, between, stuck, moved = {}, {}, {}, {}, {}
    for each, dtype in HALVES:
        count = 2**each.mantissa
        low, high = costs.always_lost_below(each.mantissa), costs.never_lost_above(each.mantissa)
        always[each.name] = Claim("", "2^m", count, vanished(low, each, dtype), "1", PAPER)
        never[each.name] = Claim("", "0", 0, vanished(high * (1 + 2**-6), each, dtype), "1", PAPER)
        for share in (9 / 16, 5 / 8, 3 / 4, 7 / 8, 1.0):
            predicted = costs.lost(share * high, each.mantissa)
            case = f"{each.name}, {share} of the limit"
            between[case] = Claim(
                "", "#{k: (1 + k/2^m) · ratio < 2^−(m+1)}", predicted, vanished(share * high, each, dtype)
            )
        steps, update = 2 * count, 2.0 ** -(each.mantissa + 1)
        for holds, cases, ends in ((False, stuck, 1.0), (True, moved, 1 + steps * update)):
            reached = trained(dtype, steps, update, masters=holds)
            cases[each.name] = Claim("", "1 + steps · u" if holds else "1", ends, reached, "1", PAPER)
    large = {
        name: Claim("", "2^(m+1)", 2.0 ** (each.mantissa + 1), added, "1", PAPER)
        for name, each, added in (
            ("2048 + 1 in float16", FLOAT16, (torch.tensor(2048.0).half() + 1).item()),
            ("256 + 1 in bfloat16", BFLOAT16, (torch.tensor(256.0).bfloat16() + 1).item()),
        )
    }
    return [
        fold("2048 + 1 in float16, and 256 + 1 in bfloat16", large, key=True),
        fold("significands that stay, update of 2^−(m+2) of the weight; all of them", always, key=True),
        fold("significands that stay, update of more than 2^−(m+1) of the weight", never, key=True),
        fold("significands that stay, updates between the two limits", between),
        fold("weight after updates of u, without a copy in float32", stuck, key=True),
        fold("weight after updates of u, with a copy in float32", moved, key=True),
        held(world),
    ]


def vanished(ratio: float, each: Format, dtype: torch.dtype) -> int:
    """How many of the numbers in [1, 2) stay as they are when `ratio` times themselves is added, and rounded."""
    weights = 1 + torch.arange(2**each.mantissa, dtype=torch.float64) / 2**each.mantissa
    return int((((1 + ratio) * weights).to(dtype).double() == weights).sum())


def trained(dtype: torch.dtype, steps: int, update: float, masters: bool) -> float:
    """A weight of 1 after so many SGD steps that each add `update`."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    module.to(dtype)
    optimizer = (
        MasterWeights(module, torch.optim.SGD, lr=update)
        if masters
        else torch.optim.SGD(module.parameters(), lr=update)
    )
    for _ in range(steps):
        module.weight.grad = torch.full_like(module.weight, -1)
        optimizer.step()
    return module.weight.item()


def held(world: World) -> Claim:
    """Bytes per parameter with Adam, counted."""
    module = nn.Linear(64, 64, bias=False).to(world.device, torch.bfloat16)
    optimizer = MasterWeights(module, torch.optim.Adam)
    module(torch.ones(1, 64, dtype=torch.bfloat16, device=world.device)).sum().backward()
    gradient = module.weight.grad
    optimizer.step()
    for master in optimizer.masters:
        master.grad = None  # lives within a step only
    states = [value for state in optimizer.optimizer.state.values() for value in state.values() if value.dim()]
    seen: set[int] = set()
    found = storage_bytes([*module.parameters(), gradient, *optimizer.masters, *states], seen)
    predicted = costs.STATES["16 bits, as ZeRO counts"].total
    what = "bytes per parameter with Adam and a float32 copy, the step's own apart"
    return Claim(what, "2 + 2 + 4 + 8", predicted, found / module.weight.numel(), "B", "Rajbhandari et al. 2020, §3.1")
