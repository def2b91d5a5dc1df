"""The lesson of `minitrain.mixture_of_experts.all_to_all`: the bytes each way, and that nothing is lost."""

from __future__ import annotations

import torch

from minitrain.collectives.all_to_all import native, pairwise
from minitrain.comm import Ledger, World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts.all_to_all import all_to_all


def demo(world: World) -> list[Claim]:
    """Sends uneven parts there and back; the table shows the bytes each way, and that nothing is lost."""
    rows, n, rank, width = Rows("Lepikhin et al. 2020, §3.3.1"), world.size, world.rank, 5
    table = [[(source + 2 * to) % 4 for to in range(n)] for source in range(n)]  # how many rows of each for each
    sends, receives = table[rank], [row[rank] for row in table]
    x = 100.0 * rank + torch.arange(sum(sends) * width, device=world.device).view(-1, width)
    x.requires_grad_()
    with Ledger() as forward:
        y = all_to_all(x, sends, receives, carrier=pairwise)
    with Ledger() as backward:
        y.backward(y.detach())
    assert x.grad is not None
    theirs = all_to_all(x.detach(), sends, receives, carrier=native)
    there, back, *_ = costs.all_to_all(table, rank, width)
    what = "all-to-all, {}: bytes sent by this rank"
    rows.add(what.format("forward"), "rows for others · h · w", there.bytes, forward.sent)
    rows.add(what.format("backward"), "rows from others · h · w", back.bytes, backward.sent)
    what = "elements that differ: there and back as gradients, and from torch's all_to_all_single"
    rows.equal(what, [x.grad, y.detach()], [x.detach(), theirs])
    return rows.claims()
