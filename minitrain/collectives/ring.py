"""Ring all-reduce: every rank talks to its two neighbors only, and all links carry the same load all the time.

**Idea.** Cut the tensor into one chunk per rank and pass the chunks around the ring, twice. The first time, every rank
adds its own values to a chunk before it passes the chunk on (reduce_scatter). The second time, the finished chunks are
passed on as they are (all_gather).
**Source.** Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
**Sent.** In each of 2(n−1) steps one chunk goes to the right neighbor while another arrives from the left one. In
total a rank sends about 2(n−1)/n · S bytes of a tensor of S bytes.
**Cost.** 2(n−1)(α + βS/n) of time; the tensor is changed in place, next to one receive buffer as large as a chunk.
The full form, `minitrain.collectives.full.ring`, adds receives that are posted ahead (for speed on CPUs), a pipelined
broadcast, and checks.
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
    """The first way round: returns chunk r of the sum; the other chunks hold partial sums."""
    rank, ranks = rank_and_size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    chunks = cut(tensor, ranks)
    buffer = torch.empty_like(chunks[0])  # no chunk is longer
    # Chunk c starts at rank c+1 and has visited all others when it reaches rank c.
    for step in range(ranks - 1):
        partial = chunks[(rank - 1 - step) % ranks]  # in step 0 only this rank's values
        own = chunks[(rank - 2 - step) % ranks]
        incoming = buffer[: len(own)]
        # The sum so far goes right, while the left neighbor's arrives.
        exchange(partial, right, incoming, left, group).wait()
        own += incoming
    return chunks[rank]  # (elements / n,)


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """The second way round: rank r brings chunk r, and every rank ends with all chunks."""
    rank, ranks = rank_and_size(group)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    chunks = cut(tensor, ranks)
    for step in range(ranks - 1):
        finished = chunks[(rank - step) % ranks]  # in step 0 this rank's own chunk
        missing = chunks[(rank - 1 - step) % ranks]
        # Pass on the chunk that came last, and receive the next one into its slot.
        exchange(finished, right, missing, left, group).wait()
    return tensor


def cut(tensor: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """One chunk per rank, views of the tensor; the first ones may be longer by one."""
    assert tensor.is_contiguous(), "only a contiguous tensor can be seen as flat chunks"
    # detach: autograd need not record that a parameter is overwritten.
    return tensor.detach().view(-1).tensor_split(ranks)  # n × (elements / n,)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
