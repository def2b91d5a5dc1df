"""The lesson of `minitrain.precision.quantised_gradients`: a quarter of the bytes, and nothing lost over many steps."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.collectives import ring
from minitrain.comm import Ledger, World
from minitrain.costs import communication
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.precision.common import differing, over_ranks
from minitrain.precision import quantised_gradients as quantised

PAPER, EIGHT = "Seide et al. 2014, §3", "Dettmers 2016, §3"


def demo(world: World, elements: int = 20_001, steps: int = 5) -> list[Claim]:
    """Sums gradients over ranks in 8 bits, several times; the table shows bytes, and what became of the errors.

    Args:
        elements: Of the gradient.
        steps: Steps whose sums are added up.
    """
    generator = torch.Generator().manual_seed(world.rank)
    residual, received, given = (torch.zeros(elements, device=world.device) for _ in range(3))
    ledger = Ledger()
    for _ in range(steps):
        drawn = torch.randn(elements, generator=generator) * torch.rand(elements, generator=generator) ** 4
        gradient = drawn.to(world.device)
        given += gradient
        with ledger:
            received += quantised.all_reduce(gradient, residual)
    plain = Ledger()
    with plain:
        ring.all_reduce(torch.zeros_like(given))
    predicted = costs.quantised_ring(elements, world.size, world.rank)
    return [
        Claim(
            "bytes that a rank sends per step",
            "2(n−1)/n · (1 + 4/block) N",
            predicted,
            ledger.sent / steps,
            "B",
            EIGHT,
            key=True,
        ),
        Claim(
            "bytes that the ring in float32 sends",
            "2(n−1)/n · 4N",
            communication.ring_all_reduce(elements, 4, world.size, world.rank).bytes,
            plain.sent,
            "B",
            "Patarasuk & Yuan 2009",
        ),
        *nothing_is_lost(world, received, given, residual, steps),
        one_rounding(residual),
    ]


def nothing_is_lost(world: World, received: Tensor, given: Tensor, residual: Tensor, steps: int) -> list[Claim]:
    """Claims on all steps together: received + residuals = gradients, and the same bits on all ranks."""
    exact, left = over_ranks(given.double()), over_ranks(residual.double())
    size = exact.abs().max().item() + left.abs().max().item()
    # Each of a few additions per rank and step is off by 2⁻²⁴ of what it adds.
    bound = 8 * steps * world.size * 2.0**-24 * max(size, 4.0)
    off = (received.double() + left - exact).abs().max().item()
    lost = (received.double() - exact).abs().max().item()
    alone = left.abs().max().item()
    return [
        Claim(
            "all that was received, plus residuals, less all gradients",
            "0",
            0,
            off,
            "1",
            PAPER,
            "compared",
            absolute=bound,
            key=True,
        ),
        Claim(
            "received less gradients, at most the residuals of one step",
            "Σ residuals",
            alone,
            lost,
            "1",
            PAPER,
            "compared",
            "<=",
            absolute=bound,
            key=True,
        ),
        Claim("elements that differ between ranks", "0", 0, differing(received), "1", EIGHT, key=True),
    ]


def one_rounding(residual: Tensor, elements: int = 1000) -> Claim:
    """The claim on how far a rounding is off: half a step of its block, of which there are 127."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(elements, generator=generator)
    found = quantised.dequantise(quantised.quantise(x), elements)
    padded = torch.nn.functional.pad(x, (0, -elements % quantised.BLOCK)).view(-1, quantised.BLOCK)
    steps = (padded.abs().amax(1) / 127).repeat_interleave(quantised.BLOCK)[:elements]
    worst = ((found - x).abs() / steps).max().item()
    what = "error of one rounding, in steps of its block"
    return Claim(what, "1/2", 0.5, worst, "1", EIGHT, "compared", "<=", tolerance=1e-4, key=True)
