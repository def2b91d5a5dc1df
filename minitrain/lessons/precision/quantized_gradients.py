"""The lesson of `minitrain.precision.quantized_gradients`: a quarter of the bytes, and nothing lost over many steps."""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import precision as costs
from minitrain.lessons.precision.common import differing, over_ranks
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision import quantized_gradients as quantized


def demo(world: World) -> list[Claim]:
    """Sums gradients over ranks in 8 bits, several times; the table shows bytes, and what became of the errors."""
    elements, steps = 20_001, 5  # of the gradient, and those whose sums are added up
    rows, generator = Rows("Dettmers 2016, §3"), torch.Generator().manual_seed(world.rank)
    residual, received, given = (torch.zeros(elements, device=world.device) for _ in range(3))
    ledger, seide, largest = Ledger(), "Seide et al. 2014, §3", 0.0
    for _ in range(steps):
        drawn = torch.randn(elements, generator=generator) * torch.rand(elements, generator=generator) ** 4
        given += (gradient := drawn.to(world.device))
        largest = max(largest, drawn.abs().max().item())
        with ledger:
            received += quantized.all_reduce(gradient, residual)
    predicted = costs.quantized_ring(elements, world.size, world.rank)
    rows.add("bytes that a rank sends per step", "2(n−1)/n · (1 + 4/block) N", predicted, ledger.sent / steps)
    exact, left = over_ranks(given.double()), over_ranks(residual.double())
    most = left.abs().max().item()
    # Each of a few additions per rank and step is off by 2⁻²⁴ of what it adds.
    bound = 8 * steps * world.size * 2.0**-24 * max(exact.abs().max().item() + most, 4.0)
    what = "all that was received, plus residuals, less all gradients"
    rows.near(what, received.double() + left, exact, bound, "0", seide)
    what = "received less gradients, after all steps: at most what the roundings of one step lose"
    lost, formula = most_lost(max(gather_objects(largest)), world.size), "n(n+1)/2 · max|g| / (254 − n)"
    rows.near(what, received.double(), exact, lost + bound, formula, "derived")
    rows.add("elements that differ between ranks", "0", 0, differing(received), "1")
    return rows.claims()


def most_lost(largest: float, ranks: int) -> float:
    """The most that n roundings of an element lose in a step, for gradients of up to G = `largest`.

    The k-th rank of a chunk rounds Mₖ, to which it has added its gradient and what its last rounding lost. A rounding
    is off by at most half of 1/127 of its block's largest: Mₖ ≤ Mₖ₋₁ + G + Mₖ/254. So Mₖ ≤ kG · (254/253)ᵏ, which is at
    most kG · 254/(254 − n), and the sum of all Mₖ/254 is at most n(n+1)/2 · G/(254 − n).
    """
    return ranks * (ranks + 1) / 2 * largest / (254 - ranks)
