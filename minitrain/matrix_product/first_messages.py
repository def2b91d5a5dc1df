"""The first messages: one rank sends a tensor, another receives it, and neither waits forever.

**Idea.** A rank sees no other rank's memory: what it needs must be sent, and it must ask for it. A message travels when
both ranks are ready, one in `send` and one in `receive`. If every rank first waits until its own tensor has been taken,
no rank ever takes one. That is a deadlock:

    send(tensor, to=next_rank).wait()            # every rank waits here, forever
    receive(incoming, source=previous_rank).wait()

Two orders work. In turn, some ranks send first and the others receive first: a shift takes the time of two messages. At
once, every rank starts both and waits afterwards: the time of one.
**Source.** Hoare 1978, "Communicating sequential processes", §2.3 (both are ready); MPI standard, §3.5 (deadlock).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.messages import exchange, receive, send


def relay(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Hand rank 0's tensor from rank to rank, each to the next one; the others' says shape and dtype only."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    carried = tensor.clone() if rank == 0 else torch.empty_like(tensor)
    if rank > 0:
        # There is nothing to hand on before this.
        receive(carried, source=rank - 1, group=group).wait()
    if rank < ranks - 1:
        # After the last rank there is no other.
        send(carried, to=rank + 1, group=group).wait()
    return carried


def shift_in_turn(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Every rank gives its tensor to the next rank, the last to the first; even ranks send first, odd ranks receive.

    Next to every rank that sends there is one that receives, and so somebody always gets on. That holds for an odd
    number of ranks, too: there rank n − 1 and rank 0 are both even, and the first waits until rank 1 has freed rank 0,
    which takes a third step. All tensors are contiguous, of one shape and dtype.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return tensor.clone()
    next_rank, previous_rank = (rank + 1) % ranks, (rank - 1) % ranks
    incoming = torch.empty_like(tensor)
    if rank % 2 == 0:
        # An odd rank is already in `receive`.
        send(tensor, to=next_rank, group=group).wait()
        receive(incoming, source=previous_rank, group=group).wait()
    else:
        # An even rank is already in `send`.
        receive(incoming, source=previous_rank, group=group).wait()
        send(tensor, to=next_rank, group=group).wait()
    return incoming


def shift_at_once(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """As `shift_in_turn`, but every rank starts both directions, then waits: one step, and no order to get wrong.

    It is MPI's `MPI_Sendrecv` and torch's `batch_isend_irecv`; a shift by one rank is one step of a ring (chapter 01).
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return tensor.clone()
    incoming = torch.empty_like(tensor)
    # One message to the next rank and one from the previous, neither waiting for the other.
    exchange(tensor, (rank + 1) % ranks, incoming, (rank - 1) % ranks, group=group).wait()
    return incoming


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
