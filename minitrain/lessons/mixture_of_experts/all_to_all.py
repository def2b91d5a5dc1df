"""The lesson of `minitrain.mixture_of_experts.all_to_all`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch

from minitrain.collectives.all_to_all import native, pairwise
from minitrain.comm import Ledger, World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.mixture_of_experts.all_to_all import all_to_all


def demo(world: World, rows: int = 3, width: int = 5) -> list[Claim]:
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
    source, messages = "Lepikhin et al. 2020, §3.3.1", {}
    claims = []
    for way, ledger, traffic in (("forward", forward, predicted.dispatch), ("backward", backward, predicted.combine)):
        what = f"all-to-all, {way}: bytes sent by this rank"
        formula = "rows for others · h · w" if way == "forward" else "rows from others · h · w"
        claims.append(Claim(what, formula, traffic.bytes, ledger.sent, "B", source, key=True))
        each = "one for each part that is not empty, ≤ n−1"
        messages[way] = Claim("", each, traffic.messages, ledger.messages, "messages", "Thakur et al. 2005")
    same = {
        "there and, as gradients, back": Claim("", "0", 0, int((x.grad != x).sum()), "1", "derived", "compared"),
        "torch's all_to_all_single": Claim("", "0", 0, int((y != plain).sum()), "1", "derived", "compared"),
    }
    return [
        *claims,
        fold("all-to-all, forward and backward: messages", messages),
        fold("elements that differ: there and back as gradients, and from torch's all_to_all_single", same, key=True),
    ]
