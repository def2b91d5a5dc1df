"""The lesson of `minitrain.precision.quantized_gradients`: a quarter of the bytes, and nothing lost over many steps."""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.costs import precision as costs
from minitrain.lessons.precision.common import differing, over_ranks
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision import quantized_gradients as quantized


def demo(world: World) -> list[Claim]:
    """Sums gradients over ranks in 8 bits, several times; the table shows bytes, and what became of the errors."""
    elements, steps = 20_001, 5  # of the gradient, and those whose sums are added up
    rows, generator = Rows("Dettmers 2016, §3"), torch.Generator().manual_seed(world.rank)
    residual, received, given = (torch.zeros(elements, device=world.device) for _ in range(3))
    ledger = Ledger()
    for _ in range(steps):
        drawn = torch.randn(elements, generator=generator) * torch.rand(elements, generator=generator) ** 4
        given += (gradient := drawn.to(world.device))
        with ledger:
            received += quantized.all_reduce(gradient, residual)
    predicted = costs.quantized_ring(elements, world.size, world.rank)
    rows.add("bytes that a rank sends per step", "2(n−1)/n · (1 + 4/block) N", predicted, ledger.sent / steps)
    exact, left = over_ranks(given.double()), over_ranks(residual.double())
    most = left.abs().max().item()
    # Each of a few additions per rank and step is off by 2⁻²⁴ of what it adds.
    bound = 8 * steps * world.size * 2.0**-24 * max(exact.abs().max().item() + most, 4.0)
    what = "all that was received, plus residuals, less all gradients"
    rows.near(what, received.double() + left, exact, bound, "0", "Seide et al. 2014, §3")
    rows.add("elements that differ between ranks", "0", 0, differing(received), "1")
    return rows.claims()
