"""The lesson of `minitrain.precision.master_weights`: which updates vanish in 16 bits, and how a copy keeps them."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import optimizers as optimizer_costs
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.optimizers.adam8bit import Adam8bit
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
        *with_eight_bits(world),
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
    states = [value for state in optimizer.optimizer.state.values() for value in state.values() if value.dim()]
    copies = [tensor for master in optimizer.masters for tensor in (master, master.grad)]
    found = storage_bytes([*module.parameters(), gradient, *copies, *states])
    predicted = costs.STATES["16 bits, as ZeRO counts"].total
    what = "bytes per parameter with Adam and a float32 copy, between steps"
    return Claim(what, "2 + 2 + 4 + 8", predicted, found / module.weight.numel(), "B", "Rajbhandari et al. 2020, §3.1")


def with_eight_bits(world: World) -> list[Claim]:
    """Claims on the bytes of a layer in 16 bits with 8-bit Adam, with a float32 copy and without one, counted."""
    return [
        Claim(
            f"bytes of 16 bits with 8-bit Adam, {name} a float32 copy",
            f"{formula} + 8⌈N/B⌉ + 2 KB",
            eight_bits_predicted(copy),
            eight_bits_held(world, copy),
            "B",
            "Dettmers et al. 2021, §2",
        )
        for name, formula, copy in (("with", "(2 + 2 + 4 + 2)N", True), ("without", "(2 + 2 + 2)N", False))
    ]


SHAPE, BLOCK = (65, 63), 64  # 4,095 elements: the last block is not full


def eight_bits_predicted(copy: bool) -> int:
    """The recipe's bytes per parameter, and what does not grow with each: a scale per block, and the tables."""
    elements, recipe = SHAPE[0] * SHAPE[1], costs.STATES["16 bits, 8-bit Adam"]
    whole = (recipe.parameters + recipe.gradients + recipe.optimizer - (0 if copy else 4)) * elements
    scales = optimizer_costs.adam8bit(SHAPE, BLOCK) - 2 * elements
    return whole + scales + optimizer_costs.TABLES_8BIT


def eight_bits_held(world: World, copy: bool) -> int:
    """What is in memory after a step: parameter, gradient, copy, and all that the optimizer keeps."""
    module = nn.Linear(SHAPE[1], SHAPE[0], bias=False).to(world.device, torch.bfloat16)
    weight = module.weight
    if copy:
        training = MasterWeights(module, Adam8bit, block=BLOCK)
        optimizer, masters = training.optimizer, training.masters
    else:
        training = optimizer = Adam8bit([weight], block=BLOCK)
        masters = []
    module(torch.ones(1, SHAPE[1], dtype=torch.bfloat16, device=world.device)).sum().backward()
    gradient = weight.grad
    training.step()
    states = [tensor for moments in optimizer.states for each in moments for tensor in each]
    copies = [tensor for master in masters for tensor in (master, master.grad)]
    return storage_bytes([weight, gradient, *copies, *states, *optimizer.tables])
