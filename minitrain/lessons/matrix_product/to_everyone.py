"""The lesson of `minitrain.matrix_product.to_everyone`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch

from minitrain.comm.ledger import Ledger
from minitrain.comm.world import World
from minitrain.costs import matrix_product as costs
from minitrain.lessons.claims import Claim
from minitrain.matrix_product.to_everyone import collect, total


def demo(world: World, elements: int = 1000) -> list[Claim]:
    """Adds one tensor from every rank, each rank sending its own to all others; the table shows bytes and the sum.

    Args:
        elements: Number of float32 values in a rank's tensor.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")
    rank, ranks = world.rank, world.size
    positions = torch.arange(elements, device=world.device) % 100
    mine = (positions * (rank + 1)).float()  # whole numbers, so that the sum is exact in any order
    with Ledger() as ledger:
        summed = total(mine)
    expected = positions * sum(range(1, ranks + 1))
    source = "Thakur et al. 2005, §4"
    whole = torch.arange(elements, device=world.device, dtype=torch.float32)
    part = whole.tensor_split(ranks)[rank].clone()
    with Ledger() as parts:
        collected = collect(part, size=elements)
    return [
        Claim(
            "sum: bytes sent", "(n−1)·S", costs.to_everyone_bytes(elements, ranks), ledger.sent, "B", source, key=True
        ),
        Claim("sum: messages sent", "n−1", ranks - 1, ledger.messages, "messages", source),
        Claim(
            "sum: largest error",
            "0",
            0,
            (summed - expected).abs().max().item(),
            source=source,
            how="compared",
            key=True,
        ),
        Claim(
            "parts: bytes sent",
            "(n−1)·S_r, S_r this rank's part",
            costs.to_everyone_bytes(costs.share(elements, ranks, rank), ranks),
            parts.sent,
            "B",
            source,
            key=True,
        ),
        Claim("parts: elements out of place", "0", 0, (collected != whole).sum().item(), source=source, how="compared"),
    ]
