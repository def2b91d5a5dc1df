"""Halving and doubling: an all-reduce that sends as few bytes as the ring, in as few steps as the tree.

**Idea.** Exchange half of the tensor with a rank half the world away and add, then a quarter at half the distance, and
so on, until each rank has one chunk of the sum (reduce_scatter). The same steps backwards spread the chunks
(all_gather). Also called Rabenseifner's algorithm, or recursive halving and doubling.
**Source.** Rabenseifner 2004, "Optimization of collective reduction operations"; Thakur, Rabenseifner & Gropp 2005.
**Sent.** S/2, S/4, … S/n bytes to partners ever nearer, and the same sizes back: 2(n−1)/n · S bytes in all.
**Cost.** 2 log2 n · α + 2(n−1)/n · βS of time; the tensor is changed in place, next to a receive buffer of half its
size. The number of ranks must be a power of two; libraries fold the ranks that are too many into their neighbors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """Add `tensor` over all ranks, in place, and return it when it is the sum."""
    reduce_scatter(tensor, group)
    return all_gather(tensor, group)


def reduce_scatter(tensor: Tensor, group: Group = None) -> Tensor:
    """Recursive halving: returns chunk r of the sum; the other chunks hold partial sums."""
    rank, ranks = rank_and_size(group)
    buffer = torch.empty_like(block(tensor, ranks, 0, ranks // 2))  # the longest half
    width = ranks // 2
    while width:
        # One bit of the two ranks differs: the same position in the other half.
        partner = rank ^ width
        keep = block(tensor, ranks, rank, width)  # (elements · width / ranks,)
        give = block(tensor, ranks, partner, width)
        incoming = buffer[: len(keep)]
        # Give the half that the partner continues with, and get that of this rank.
        exchange(give, partner, incoming, partner, group).wait()
        keep += incoming
        width //= 2
    return block(tensor, ranks, rank, 1)  # (elements / ranks,)


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """Recursive doubling: rank r brings chunk r, and every rank ends with all chunks."""
    rank, ranks = rank_and_size(group)
    width = 1
    while width < ranks:
        partner = rank ^ width
        have = block(tensor, ranks, rank, width)  # (elements · width / ranks,)
        missing = block(tensor, ranks, partner, width)
        # Give everything gathered so far, and get as much, straight into its slot.
        exchange(have, partner, missing, partner, group).wait()
        width *= 2
    return tensor


def block(tensor: Tensor, ranks: int, rank: int, width: int) -> Tensor:
    """The `width` neighboring chunks, chunk `rank` among them, as a view of the tensor."""
    assert ranks & (ranks - 1) == 0, f"{ranks} ranks are not a power of two; use a ring"
    assert tensor.is_contiguous(), "only a contiguous tensor can be seen as flat chunks"
    # detach: autograd need not record that a parameter is overwritten.
    flat = tensor.detach().view(-1)  # (elements,)
    sizes = [len(chunk) for chunk in flat.tensor_split(ranks)]
    # Blocks begin at multiples of the width: clear the lower bits of the rank.
    first = rank & -width
    start = sum(sizes[:first])
    return flat[start : start + sum(sizes[first : first + width])]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
