"""Messages between ranks: the verbs that every chapter is built from.

Each verb starts a communication and returns a `Handle`. `wait()` blocks until it is done and returns the tensor that
was sent, received, or reduced. Leave a tensor alone until then, because it is not copied. Ranks are counted within
`group`; None means everyone.

NCCL and gloo differ in two ways, which are hidden here. NCCL wants both directions of an exchange in one batch. And
gloo's messages are between CPUs, so those of a GPU go through the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Communication:
    """What observers are told before a communication starts.

    Attributes:
        verb: "send", "receive", "all_reduce", …
        tensor: What this rank brings; of a receive, where it arrives.
        group: The ranks that talk; None means everyone.
        peer: The other rank of a message, within the group; None for a collective.
        tag: Of a message.
        into: Where the result of a collective arrives, if not in `tensor`.
        sizes: Of an all_to_all, how many rows leave for each rank, and how many arrive from each.
        compared: Of a collective, whether the ranks have already compared what they bring.
        ahead: Of a receive, whether its memory may be used until the sender has heard from this rank.
    """

    verb: str
    tensor: Tensor
    group: Group = None
    peer: int | None = None
    tag: int = 0
    into: Tensor | None = None
    sizes: tuple[Sequence[int], Sequence[int]] | None = None
    compared: bool = False
    ahead: bool = False


class Watch:
    """What an observer of a communication does later: nothing, unless a subclass says otherwise."""

    def waits(self) -> None:
        """This rank begins to wait for the communication."""

    def ends(self) -> None:
        """It has been waited for."""


class Handle:
    """A communication that may still be under way; `wait()` may be called again.

    Attributes:
        observers: Instruments and checks, called with each `Communication` before it starts. They may return a `Watch`.
    """

    observers: list[Callable[[Communication], Watch | None]] = []

    def __init__(
        self,
        works: Iterable[Any] = (),
        result: Tensor | None = None,
        *then: Callable[[], Any],
        watches: Iterable[Watch] = (),
    ):
        self.works, self.result, self.then, self.watches = list(works), result, list(then), list(watches)

    def wait(self) -> Tensor | None:
        for watch in self.watches:
            watch.waits()
        # Each once: torch's own handle of a message hangs if it is waited for twice.
        while self.works:
            self.works.pop(0).wait()
        while self.watches:
            self.watches.pop(0).ends()
        while self.then:
            self.then.pop(0)()
        return self.result


# In a rehearsal (`minitrain.comm.rehearsal`), the backend that would carry a group's messages on GPUs.
rehearsed: Callable[[Group], str] | None = None


def backend(group: Group = None) -> str:
    """The backend of a group's messages, "nccl" or "gloo"; in a rehearsal, the one that GPUs would use."""
    return dist.get_backend(group) if rehearsed is None else rehearsed(group)


def place(group: Group = None) -> tuple[int, int]:
    """This rank's number within the group, and how many ranks there are."""
    return dist.get_rank(group), dist.get_world_size(group)


def send(tensor: Tensor, to: int, group: Group = None, tag: int = 0) -> Handle:
    """Start sending. `tag` tells messages between the same two ranks apart (NCCL ignores it)."""
    watches = observe(Communication("send", tensor, group, to, tag))
    return Handle([leave(tensor, to, group, tag)], tensor, watches=watches)


def receive(into: Tensor, source: int, group: Group = None, tag: int = 0, ahead: bool = False) -> Handle:
    """Start receiving into a tensor of the shape and dtype that are sent; with any other, garbage arrives.

    `ahead`: the memory is still in use, because the sender will send only when it has heard from this rank.
    """
    watches = observe(Communication("receive", into, group, source, tag, ahead=ahead))
    return Handle([arrive(into, source, group, tag)], into, watches=watches)


def exchange(tensor: Tensor, to: int, into: Tensor, source: int, group: Group = None) -> Handle:
    """Send to one rank and receive from another, or the same, at once; `wait()` gives what was received."""
    if to == source == dist.get_rank(group):
        return Handle((), into.copy_(tensor))  # a ring of one rank
    watches = observe(Communication("send", tensor, group, to), Communication("receive", into, group, source))
    if backend(group) != "nccl" or not (tensor.numel() and into.numel()):
        return Handle([arrive(into, source, group), leave(tensor, to, group)], into, watches=watches)
    # Both in one batch: if each rank first sent and then received, all might wait for ever.
    arriving = dist.P2POp(dist.irecv, into, group=group, group_peer=source)
    leaving = dist.P2POp(dist.isend, tensor, group=group, group_peer=to)
    return Handle(dist.batch_isend_irecv([arriving, leaving]), into, watches=watches)


def all_reduce(tensor: Tensor, group: Group = None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Handle:
    """Add over all ranks, in place: everyone gets the sum."""
    watches = observe(Communication("all_reduce", tensor, group))
    return Handle([dist.all_reduce(tensor, op, group, async_op=True)], tensor, watches=watches)


def all_gather(shard: Tensor, group: Group = None, into: Tensor | None = None) -> Handle:
    """Everyone gets all ranks' shards, one after the other along dim 0; `into` is memory for them."""
    _, ranks = place(group)
    whole = shard.new_empty(ranks * shard.shape[0], *shard.shape[1:]) if into is None else into
    shard = shard.contiguous()
    watches = observe(Communication("all_gather", shard, group, into=whole))
    return Handle([_all_gather(whole, shard, group=group, async_op=True)], whole, watches=watches)


def reduce_scatter(whole: Tensor, group: Group = None) -> Handle:
    """Add over all ranks: rank r gets the r-th of n equal parts of the sum along dim 0."""
    whole = whole.contiguous()
    shard = torch.empty_like(whole.chunk(dist.get_world_size(group))[0])
    watches = observe(Communication("reduce_scatter", whole, group, into=shard))
    return Handle([_reduce_scatter(shard, whole, group=group, async_op=True)], shard, watches=watches)


def all_to_all(rows: Tensor, leaving: Sequence[int], arriving: Sequence[int], group: Group = None) -> Handle:
    """Rows change ranks: the next `leaving[r]` go to rank r, and `arriving[r]` come from it, in the order of ranks."""
    rows, into = rows.contiguous(), rows.new_empty(sum(arriving), *rows.shape[1:])
    watches = observe(Communication("all_to_all", rows, group, into=into, sizes=(leaving, arriving)))
    work = dist.all_to_all_single(into, rows, list(arriving), list(leaving), group, async_op=True)
    return Handle([work], into, watches=watches)


def observe(*communications: Communication) -> list[Watch]:
    """Tell the observers of communications that are about to start; returns what they want to be told later."""
    return [
        watch
        for communication in communications
        for observer in Handle.observers
        if (watch := observer(communication)) is not None
    ]


def leave(tensor: Tensor, to: int, group: Group, tag: int = 0) -> Handle:
    """One message to `to`; an empty tensor is not sent."""
    wire = tensor.cpu() if backend(group) == "gloo" else tensor
    return Handle([dist.isend(wire, group=group, group_dst=to, tag=tag)] if tensor.numel() else [], wire)


def arrive(into: Tensor, source: int, group: Group, tag: int = 0) -> Handle:
    """One message from `source`."""
    wire = torch.empty_like(into, device="cpu") if into.is_cuda and backend(group) == "gloo" else into
    works = [dist.irecv(wire, group=group, group_src=source, tag=tag)] if into.numel() else []
    return Handle(works, into, lambda: wire is into or into.copy_(wire))


# torch 2.13 has new names for two of its collectives; 2.11 knows the old ones only.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
