"""Tree all-reduce: every step doubles the number of ranks whose values are combined, so log2(n) steps are enough.

**Idea.** Pair the ranks and add within each pair, pair the winners, and so on, until rank 0 has the sum (reduce). Then
the sum takes the same way back to everyone (broadcast). For n = 8: 1→0 3→2 5→4 7→6, then 2→0 6→4, then 4→0.
**Source.** Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", sections
"Broadcast" and "Reduce" (binomial tree).
**Sent.** The whole tensor of S bytes in every message: once to the parent, and once to each child.
**Cost.** 2⌈log2 n⌉(α + βS) of time: few latencies α, so small tensors take the tree and large ones the ring. The tensor
is changed in place, next to one receive buffer of its size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.messages import Group, rank_and_size, receive, send


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """Add `tensor` over all ranks, in place, and return it when it is the sum."""
    reduce(tensor, group)
    return broadcast(tensor, group)


def reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """Up the tree: rank 0 ends with the sum, the others with those of their subtrees."""
    assert tensor.is_contiguous(), "only contiguous tensors can be sent"
    rank, ranks = rank_and_size(group)
    total = tensor.detach()  # the same memory; autograd need not record what follows
    incoming = torch.empty_like(total)
    for distance in distances(ranks):
        if rank % (2 * distance) == distance:
            # This subtree is added up: its sum goes to the parent.
            send(total, rank - distance, group).wait()
        elif rank % (2 * distance) == 0 and rank + distance < ranks:
            # The sum of the neighboring subtree, to be added to this rank's.
            receive(incoming, rank + distance, group).wait()
            total += incoming
    return tensor


def broadcast(tensor: Tensor, group: Group = None) -> Tensor:
    """Down the tree: every rank ends with the values of rank 0."""
    assert tensor.is_contiguous(), "only contiguous tensors can be sent"
    rank, ranks = rank_and_size(group)
    result = tensor.detach()
    # The same pairs in reverse order, and in each pair the other direction.
    for distance in reversed(distances(ranks)):
        if rank % (2 * distance) == distance:
            # From the parent, straight into the tensor.
            receive(result, rank - distance, group).wait()
        elif rank % (2 * distance) == 0 and rank + distance < ranks:
            # The child with the largest subtree comes first: its way is the longest.
            send(result, rank + distance, group).wait()
    return tensor


def distances(ranks: int) -> list[int]:
    """How far apart partners are in each step: 1, 2, 4, … below the number of ranks."""
    return [2**step for step in range((ranks - 1).bit_length())]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
