"""A sum over ranks in the plainest way: every rank sends its tensor to all others.

**Idea.** In step k = 1 … n − 1 rank r sends to rank r + k and receives from rank r − k, both at once. No step needs
anything from the one before it, and no rank is busier than another.

**Source.** Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", §4.
**Sent.** (n − 1)·S bytes in n − 1 messages by every rank. For two ranks nothing is better; for more, the rings of
chapter 01 send 2(n − 1)/n · S, less than 2S however many ranks there are.
Also called all-reduce by direct exchange.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size


def total(tensor: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' tensors, on every rank; all bring one shape and dtype."""
    rank, ranks = rank_and_size(group)
    summands = [torch.empty_like(tensor) for _ in range(ranks)]
    summands[rank].copy_(tensor)
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        # Both directions at once: if each rank first sent and then received, all would wait forever.
        exchange(tensor, to, summands[source], source, group).wait()
    # Added in the order of ranks, whatever the order of arrival: all ranks get the same bits.
    result = torch.zeros_like(tensor)
    for summand in summands:
        result += summand
    return result


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
