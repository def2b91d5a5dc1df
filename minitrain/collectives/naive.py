"""Naive all-reduce: rank 0 receives every tensor, adds them up, and sends the sum to everyone.

**Idea.** One rank does all the work. This is the first program that one would write, and rank 0 is its bottleneck: the
other ranks' links are idle while they wait for their turn.
**Source.** The "linear" algorithms that others are measured against: Thakur, Rabenseifner & Gropp 2005, "Optimization
of collective communication operations in MPICH".
**Sent.** Every rank sends its tensor of S bytes to rank 0, which sends the sum n−1 times: (n−1) · S bytes.
**Cost.** 2(n−1)(α + βS) of time; the tensor is changed in place, and rank 0 holds one more of its size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.messages import Group, rank_and_size, receive, send


def all_reduce(tensor: Tensor, group: Group = None) -> Tensor:
    """Add `tensor` over all ranks, in place, and return it when it is the sum."""
    assert tensor.is_contiguous(), "only contiguous tensors can be sent"
    rank, ranks = rank_and_size(group)
    total = tensor.detach()  # the same memory; autograd need not record what follows
    if rank == 0:
        incoming = torch.empty_like(total)
        for other in range(1, ranks):
            # One whole tensor after the other; all ranks but this one are waiting.
            receive(incoming, other, group).wait()
            total += incoming
        for other in range(1, ranks):
            # The same sum, as many times as there are other ranks.
            send(total, other, group).wait()
    else:
        # The whole tensor, since rank 0 needs every element of it.
        send(total, 0, group).wait()
        # The sum arrives in the same memory.
        receive(total, 0, group).wait()
    return tensor


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
