"""Ordered sum: data parallelism whose gradients have the same bits on 1, 2, 3 or any number of ranks.

**Idea.** Floating-point sums depend on their order, and an all-reduce's order depends on the number of ranks. Here the
batch is M micro-batches of a fixed size, rank r has the next M/n of them, and their gradients are added in the order
of micro-batches: the sum so far travels from rank to rank, and each adds its own. So a run may lose a rank, or get
back one, and go on as if nothing had happened, to the bit.

**Source.** Derived. Chapter 02's all-reduce is the comparison.
**Sent.** Each rank sends the sum to both of its neighbors: 2(n−1)S in all, exactly as much as a ring all-reduce.
**Cost.** M/n gradients per rank are kept instead of their sum. With P pieces it takes 2(P+n−2)/P · S/B instead of a
ring's 2(n−1)/n · S/B, and none of that can begin before backward has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.comm.messages import Group, rank_and_size, receive, send


def share(micro_batches: int, rank: int, ranks: int) -> range:
    """Consecutive micro-batches for each rank, since the order of ranks is that of additions."""
    assert micro_batches >= ranks, f"{micro_batches=} are too few for {ranks} ranks"
    return range(micro_batches * rank // ranks, micro_batches * (rank + 1) // ranks)


@torch.no_grad()
def ordered_sum(gradients: Sequence[Tensor], group: Group = None, pieces: int = 4) -> Tensor:
    """((g₀ + g₁) + g₂) + … over the micro-batches of all ranks, on every rank.

    Args:
        gradients: One flat tensor for each micro-batch of this rank, in order.
        pieces: In how many the sum travels, so that all ranks are busy.
    """
    rank, ranks = rank_and_size(group)
    total = torch.zeros_like(gradients[0])  # [elements]
    size = math.ceil(len(total) / pieces)
    parts = total.split(size)
    onward, back = [], []
    for number, part in enumerate(parts):
        if rank > 0:
            # The sum over all micro-batches before this rank's.
            receive(part, rank - 1, group).wait()
        for gradient in gradients:
            part += gradient[number * size : (number + 1) * size]
        if rank < ranks - 1:
            onward.append(send(part, rank + 1, group))
    for number, part in enumerate(parts):
        if rank < ranks - 1:
            # The memory is free once the sum so far has left.
            onward[number].wait()
            # The last rank's sum is the whole one, and returns along the same way.
            receive(part, rank + 1, group).wait()
        if rank > 0:
            back.append(send(part, rank - 1, group))
    for handle in back:
        handle.wait()
    return total


def ordered_norm(total: Tensor, piece: int = 4096) -> float:
    """The norm, with an order of additions that does not depend on how many threads a rank has."""
    # torch gives a sum to several threads only above 32,768 elements.
    return math.sqrt(sum(part.double().square().sum().item() for part in total.split(piece)))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
