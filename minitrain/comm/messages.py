"""Point-to-point messages: one rank sends a tensor, another receives it.

Everything else is built from these. The verbs start a message and return a `Handle`; `wait()` returns when the tensor
has left (send) or is filled (receive). They hide only what differs between backends: NCCL wants the two directions of
an exchange in one batch, and gloo takes CPU tensors only, so those of a GPU are copied through the CPU.

Under a `VirtualClock` each message also carries the virtual time at which it leaves its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import contiguous, control
from minitrain.comm.timeline import VirtualClock


class Handle:
    """A communication that may still be under way.

    `wait()` returns when it is done and gives its result. It may be called again: torch's own handle of a
    point-to-point message hangs when it is waited for twice.
    """

    def __init__(
        self,
        works: Sequence[dist.Work | None] = (),
        result: Tensor | None = None,
        finish: Callable[[], None] | None = None,
    ):
        self._works = list(works)
        self._result = result
        self._finish = finish

    def wait(self) -> Tensor | None:
        """Wait until it is done; returns the received or reduced tensor, None for a send."""
        while self._works:
            if (work := self._works.pop(0)) is not None:
                work.wait()
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return self._result


def send(tensor: Tensor, to: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> Handle:
    """Start sending `tensor` to rank `to` of `group`.

    The tensor is not copied: do not change it before `wait()` has returned. An empty tensor is not sent.

    Args:
        tensor: What to send; contiguous.
        to: The receiving rank within `group`.
        group: The ranks that talk; None means everyone.
        tag: Tells messages between the same two ranks apart (NCCL ignores it).

    Raises:
        ValueError: `to` is no other rank of the group, or `tensor` is not contiguous.
    """
    _check("send", tensor, "to", to, group)
    if tensor.numel() == 0:
        return Handle()
    wire = tensor.cpu() if _staged(tensor, group) else tensor
    stamp = _stamp_out(tensor, to, group)
    # One message to `to`.
    works = [dist.isend(wire, group=group, group_dst=to, tag=tag)]
    return _leaving(works, wire, stamp)


def receive(tensor: Tensor, source: int, group: dist.ProcessGroup | None = None, tag: int = 0) -> Handle:
    """Start receiving into `tensor` from rank `source` of `group`.

    Shape and dtype must be those that are sent: a mismatch is not noticed by every backend, and garbles the data.

    Args:
        tensor: The buffer to fill; contiguous. Its contents are undefined until `wait()` has returned.
        source: The sending rank within `group`.
        group: The ranks that talk; None means everyone.
        tag: As given to `send`.

    Raises:
        ValueError: `source` is no other rank of the group, or `tensor` is not contiguous.
    """
    _check("receive", tensor, "source", source, group)
    if tensor.numel() == 0:
        return Handle(result=tensor)
    wire = torch.empty_like(tensor, device="cpu") if _staged(tensor, group) else tensor
    # One message from `source`.
    works = [dist.irecv(wire, group=group, group_src=source, tag=tag)]
    return _arriving(works, wire, tensor, source, group)


def exchange(
    outgoing: Tensor, to: int, incoming: Tensor, source: int, group: dist.ProcessGroup | None = None
) -> Handle:
    """Send to one rank and receive from another (or the same) at once; `wait()` waits for both.

    Two ranks that first send and then receive would wait for each other for ever. Here neither direction waits.

    Args:
        outgoing: What to send to rank `to`; contiguous, and left alone until `wait()` has returned.
        to: The receiving rank within `group`.
        incoming: The buffer for what rank `source` sends; contiguous.
        source: The sending rank within `group`.
        group: The ranks that talk; None means everyone.

    Raises:
        ValueError: `to` or `source` is no other rank of the group, or a tensor is not contiguous.
    """
    _check("exchange", outgoing, "to", to, group)  # both, before either is under way
    _check("exchange", incoming, "source", source, group)
    if dist.get_backend(group) != "nccl" or not (outgoing.numel() and incoming.numel()):
        arriving = receive(incoming, source, group)
        leaving = send(outgoing, to, group)
        return Handle(result=incoming, finish=lambda: (leaving.wait(), arriving.wait()) and None)
    stamp = _stamp_out(outgoing, to, group)
    # NCCL starts both in one batch; one after the other, two ranks could each wait for the other to receive.
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=to),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=source),
        ]
    )
    arriving = _arriving(works, incoming, incoming, source, group)
    leaving = _leaving([], outgoing, stamp)
    return Handle(result=incoming, finish=lambda: (leaving.wait(), arriving.wait()) and None)


def _check(verb: str, tensor: Tensor, name: str, peer: int, group: dist.ProcessGroup | None) -> None:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{verb}: this rank ({dist.get_rank()}) is not in the group; only its members may call")
    if not 0 <= peer < size or peer == rank:
        raise ValueError(
            f"{verb}: {name}={peer} is no other rank of this group of {size} (this is rank {rank}); "
            f"use one of 0 to {size - 1} but {rank}"
        )
    contiguous(verb, tensor)


def _staged(tensor: Tensor, group: dist.ProcessGroup | None) -> bool:
    return tensor.is_cuda and dist.get_backend(group) == "gloo"


Stamp = tuple[VirtualClock, float, "dist.Work | None", Tensor]


def _stamp_out(tensor: Tensor, to: int, group: dist.ProcessGroup | None) -> Stamp | None:
    clock = VirtualClock.active()
    if clock is None:
        return None
    finish = clock.start_send(tensor.nbytes, dist.get_process_group_ranks(group)[to])
    stamp = torch.tensor([finish], dtype=torch.float64, device="cpu")
    # The virtual time travels beside the message, as a control message.
    return clock, finish, control(group).send([stamp], to, 0), stamp


def _leaving(works: list, wire: Tensor, stamp: Stamp | None) -> Handle:
    # The closure keeps `wire` and the stamp alive until the message has left: gloo sends from their memory.
    def left(kept: Tensor = wire) -> None:
        if stamp is not None:
            clock, finish, work, _ = stamp
            if work is not None:
                work.wait()
            clock.wait_until(finish)

    return Handle(works, finish=left)


def _arriving(works: list, wire: Tensor, tensor: Tensor, source: int, group: dist.ProcessGroup | None) -> Handle:
    clock = VirtualClock.active()
    stamp = torch.empty(1, dtype=torch.float64, device="cpu")
    stamped = None
    if clock is not None:
        stamped = control(group).recv([stamp], source, 0)

    def arrived() -> None:
        if wire is not tensor:
            tensor.copy_(wire)
        if clock is not None and stamped is not None:
            stamped.wait()
            clock.finish_receive(tensor.nbytes, dist.get_process_group_ranks(group)[source], stamp.item())

    return Handle(works, result=tensor, finish=arrived)
