"""The lesson of `minitrain.matrix_product.to_everyone`: the right sum, and what it sends."""

from __future__ import annotations

import torch

from minitrain.comm.ledger import Ledger
from minitrain.comm.world import World
from minitrain.costs import matrix_product as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.matrix_product.to_everyone import total


def demo(world: World) -> list[Claim]:
    """Adds one tensor from every rank, each rank sending its own to all others; the table shows bytes and the sum."""
    rows, n, elements = Rows("Thakur et al. 2005, §4"), world.size, 1001
    what, formula = "sum: bytes sent, and messages", "(n−1)·S in n−1 messages"
    # Whole numbers, so that the sum is exact in any order.
    positions = torch.arange(elements, device=world.device, dtype=torch.float64) % 100
    with Ledger() as ledger:
        summed = total(positions * (world.rank + 1))
    rows.add(what, formula, costs.to_everyone_bytes(elements, n, item=8), ledger.sent, case="bytes")
    rows.add(what, formula, n - 1, ledger.messages, "messages", case="messages")
    rows.equal("elements of the sum that are wrong", summed, positions * sum(range(1, n + 1)))
    return rows.claims()
