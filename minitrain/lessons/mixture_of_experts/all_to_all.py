"""The lesson of `minitrain.mixture_of_experts.all_to_all`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch

from minitrain.collectives.all_to_all import native, pairwise
from minitrain.comm import Ledger, World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.mixture_of_experts.all_to_all import all_to_all


def demo(world: World, rows: int = 3, width: int = 4) -> list[Claim]:
    """Sends uneven parts there and back; the table shows the bytes each way, and that nothing is lost.

    Args:
        rows: The most rows that a rank has for another.
        width: float32 numbers (4 bytes each) in a row.
    """
    n, rank = world.size, world.rank
    table = [[(source + 2 * to) % (rows + 1) for to in range(n)] for source in range(n)]  # rows of each for each
    sends, receives = table[rank], [row[rank] for row in table]
    x = 100.0 * rank + torch.arange(sum(sends) * width, device=world.device).view(-1, width)
    x.requires_grad_()
    with Ledger() as forward:
        y = all_to_all(x, sends, receives, carrier=pairwise)
    with Ledger() as backward:
        y.backward(y.detach())
    assert x.grad is not None
    plain = all_to_all(x.detach(), sends, receives, carrier=native)
    predicted = costs.all_to_all(table, rank, width)
    claims = []
    for way, ledger, traffic in (("forward", forward, predicted.dispatch), ("backward", backward, predicted.combine)):
        on, source = f"all-to-all, {way}: ", "Lepikhin et al. 2020, §3.2"
        formula = "rows for others · h · w" if way == "forward" else "rows from others · h · w"
        claims.append(Claim(on + "bytes sent by this rank", formula, traffic.bytes, ledger.sent, "B", source, key=True))
        most = "≤ n−1: one for each part that is not empty"
        claims.append(Claim(on + "messages", most, traffic.messages, ledger.messages, "1", "Thakur et al. 2005, §3"))
    unlike = [int((x.grad != x).sum()), int((y != plain).sum())]
    there = Claim(
        "all-to-all there and, as gradients, back: elements unlike", "0", 0, unlike[0], how="compared", key=True
    )
    same = Claim("pairwise: elements unlike torch's all_to_all_single", "0", 0, unlike[1], how="compared")
    return [*claims, there, same]
