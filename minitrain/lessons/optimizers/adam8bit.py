"""The lesson of `minitrain.optimizers.adam8bit`: its values, its rounding, its bytes, and where a shard may be cut."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common
from minitrain.optimizers import adam8bit
from minitrain.optimizers.adam8bit import Adam8bit

PAPER = "Dettmers et al. 2021"


def demo(world: World, lr: float = 0.1, block: int = 64) -> list[Claim]:
    """Steps tensors with 8-bit Adam; the table shows its values, formulas, bytes, and ZeRO-1 cut between blocks.

    Args:
        lr: α, the learning rate.
        block: Numbers that share a scale.
    """
    hand = by_hand.adam8bit(common.THETA, common.GRADIENTS, lr, (0.9, 0.999), 1e-8, block=4)
    cases = {"blocks of 4": (common.three_steps(world, partial(Adam8bit, lr=lr, block=4)), hand)}
    make = partial(Adam8bit, lr=lr, block=block)
    # One tensor of so many blocks that up to 8 ranks get whole ones.
    shape, source = [(840 * block // 8,)], f"{PAPER}, §1.3 and §2"
    claims = [
        common.like_the_paper(cases, "Adam, m and v rounded after each step", source),
        common.held(world, make, partial(costs.adam8bit, block=block), "2E + 8⌈E/B⌉ + 2 KB", source, more=TABLES),
        values(),
        rounding(world),
        common.by_element(world, partial(Adam8bit, lr=lr, block=block // 8), shape, "derived"),
        inside_a_block(world, lr, shape),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of 262,144 parameters"):
        optimizer.step()
    return claims


TABLES = costs.TABLES_8BIT


def values() -> Claim:
    """The claim on the 256 values, with a sign and without."""
    cases = {}
    for signed in (True, False):
        found, right = adam8bit.table(signed).tolist(), by_hand.table(signed)
        missing = len(set(right) ^ set(found)) + abs(len(found) - len(right))
        cases[f"signed={signed}"] = Claim("", "10⁻ᵉ(0.1 + 0.9(k + ½)/2ᶠ)", 0, missing, "values", PAPER, "compared")
    return fold("values of a byte that are missing or too many; signed, unsigned", cases)


def rounding(world: World) -> Claim:
    """The claim on the largest error over a block's largest number, of numbers from −1 or 0 to 1, evenly spaced.

    The numbers are 2⁻¹⁶ apart, and the worst case may lie between two: the error is up to 2⁻¹⁷ smaller.
    """
    cases = {}
    for signed in (False, True):
        start = -(2**16) if signed else 0
        # Three times as large: the scale has a part in it.
        x = 3 * torch.arange(start, 2**16 + 1, dtype=torch.float64, device=world.device) / 2**16
        table = adam8bit.table(signed).to(world.device)
        back = adam8bit.dequantise(*adam8bit.quantise(x, table, x.numel()), table, x.numel())
        error = float((back - x).abs().max()) / 3
        name = "with a sign" if signed else "without a sign"
        predicted, formula = costs.largest_rounding(signed), "0.9/2⁷; 0.9/2⁸"
        cases[name] = Claim("", formula, predicted, error, source="derived", how="compared", absolute=2**-17 + 1e-7)
    return fold("largest rounding error over the block's largest number; with a sign, and without", cases, key=True)


def inside_a_block(world: World, lr: float, shape: list[tuple[int]]) -> Claim:
    """The claim that a cut inside a block changes the result: both parts have another largest number."""
    what = "elements that differ under ZeRO-1 from those on one device where blocks of 17 are cut"
    if world.size == 1:
        return Claim.needs_ranks(2, what, "≥ 1", "derived")
    make = partial(Adam8bit, lr=lr, block=17)  # a prime that is in no number of elements on a rank
    run = common.sharded(world, make, shape, dtype=torch.float32)
    right, _ = common.unsharded(world, make, shape, run.gradients, torch.float32)
    return Claim(what, "≥ 1", 1, common.different(run.parameters, right), "elements", "derived", "compared", ">=")
