"""Messages between ranks: the verbs that every chapter is built from.

Each verb starts a communication and returns a `Handle`. `wait()` blocks until it is done and returns the tensor that
was sent, received, or reduced. Leave a tensor alone until then, because it is not copied. Ranks are counted within
`group`; None means everyone. An empty tensor is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def rank_and_size(group: Group = None) -> tuple[int, int]:
    """This rank's number within the group, and how many ranks there are."""
    return dist.get_rank(group), dist.get_world_size(group)


def send(tensor: Tensor, to: int, group: Group = None, tag: int = 0) -> Handle:
    """Start sending. `tag` tells messages between the same two ranks apart (NCCL ignores it)."""
    works = [dist.isend(tensor, group=group, group_dst=to, tag=tag)] if tensor.numel() else []
    return Handle(works, tensor)


def receive(into: Tensor, source: int, group: Group = None, tag: int = 0) -> Handle:
    """Start receiving into a tensor of the shape and dtype that are sent; with any other, garbage arrives."""
    works = [dist.irecv(into, group=group, group_src=source, tag=tag)] if into.numel() else []
    return Handle(works, into)


def exchange(tensor: Tensor, to: int, into: Tensor, source: int, group: Group = None) -> Handle:
    """Send to one rank and receive from another, or the same, at once; `wait()` gives what was received."""
    if to == source == dist.get_rank(group):
        return Handle((), into.copy_(tensor))  # a ring of one rank
    arriving = dist.P2POp(dist.irecv, into, group=group, group_peer=source)
    leaving = dist.P2POp(dist.isend, tensor, group=group, group_peer=to)
    batch = [message for message in (arriving, leaving) if message.tensor.numel()]
    # Both in one batch: if each rank first sent and then received, all might wait forever.
    return Handle(dist.batch_isend_irecv(batch) if batch else (), into)


def broadcast(tensor: Tensor, source: int, group: Group = None) -> Handle:
    """Copy one rank's tensor to all others, in place."""
    return Handle([dist.broadcast(tensor, group_src=source, group=group, async_op=True)], tensor)


def all_reduce(tensor: Tensor, group: Group = None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Handle:
    """Add over all ranks, in place: everyone gets the sum."""
    return Handle([dist.all_reduce(tensor, op, group, async_op=True)], tensor)


def all_gather(shard: Tensor, group: Group = None, into: Tensor | None = None) -> Handle:
    """Everyone gets all ranks' shards, one after the other along dim 0; `into` is memory for them."""
    ranks = dist.get_world_size(group)
    whole = shard.new_empty(ranks * shard.shape[0], *shard.shape[1:]) if into is None else into
    # torch 2.11 knows the old name only, and torch 2.13 warns of it; so below.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Handle([gather(whole, shard.contiguous(), group=group, async_op=True)], whole)


def reduce_scatter(whole: Tensor, group: Group = None) -> Handle:
    """Add over all ranks: rank r gets the r-th of n equal parts of the sum along dim 0."""
    whole = whole.contiguous()
    shard = torch.empty_like(whole.chunk(dist.get_world_size(group))[0])
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Handle([scatter(shard, whole, group=group, async_op=True)], shard)


def all_to_all(rows: Tensor, leaving: Sequence[int], arriving: Sequence[int], group: Group = None) -> Handle:
    """Rows change ranks: the next `leaving[r]` go to rank r, and `arriving[r]` come from it, in the order of ranks."""
    into = rows.new_empty(sum(arriving), *rows.shape[1:])
    work = dist.all_to_all_single(into, rows.contiguous(), list(arriving), list(leaving), group, async_op=True)
    return Handle([work], into)


class Handle:
    """A communication that may still be under way; `wait()` may be called again.

    Args:
        works: torch's handles, all of which are waited for.
        result: What `wait()` gives.
        then: Called once, after the works are done.
    """

    def __init__(self, works: Sequence[Any] = (), result: Tensor | None = None, *then: Callable[[], Any]):
        self.works, self.result, self.then = list(works), result, list(then)

    def wait(self) -> Tensor | None:
        # Each once: torch's own handle of a message hangs if it is waited for twice.
        while self.works:
            self.works.pop(0).wait()
        while self.then:
            self.then.pop(0)()
        return self.result
