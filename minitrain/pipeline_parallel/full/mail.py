"""Sends the result of an action to the rank that needs it, and receives what an action needs.

**Idea.** The schedule already tells both ends which messages exist: each carries the result of one action to another
that needs it. In which order they are posted and why no rank waits forever: `pipeline_parallel/full/nccl_order.py`,
to be opened next. How large they are: `pipeline_parallel/full/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.groups import backend
from minitrain.comm.messages import Handle, receive, send
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.nccl_order import Message, Unposted, in_common_order
from minitrain.pipeline_parallel.full.shapes import Shapes

AHEAD = 2  # receives that are posted beyond what is waited for: their buffers are held before they are full


class Mail:
    """Sends the results of one rank's actions, and receives what they need, in memory on `device`.

    `in_order` keeps the common order also between different ranks, as NCCL needs; None: where it is NCCL.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
        in_order: bool | None = None,
    ):
        self._rank, self._group, self._device = rank, group, device
        self._in_order = backend(group) == "nccl" if in_order is None else in_order
        self._place = {action: place for row in schedule.actions for place, action in enumerate(row)}
        self._messages = [message for message in in_common_order(schedule) if rank in (message.source, message.to)]
        self._outgoing = {message.made: message for message in self._messages if message.source == rank}
        self._incoming = {message.needed: message for message in self._messages if message.to == rank}
        self._waits = sorted(self._incoming, key=lambda action: self._place[action])  # in the order of our actions
        self.begin(None)

    def begin(self, kinds: Sequence[int] | None) -> None:
        """Start a step. `kinds`: on the rank of the first stage, for each micro-batch the first one of its kind."""
        self.shapes = Shapes(self._group, kinds)
        self._unposted = Unposted(self._messages, self._rank, self._in_order)
        self._next = 0  # of `_waits`
        self._arriving: dict[Message, list[tuple[Tensor, Handle, bool]]] = {}
        self._leaving: dict[int, list[tuple[int, Handle]]] = {}  # by receiver: place of what needs it there, and handle

    def receive_for(self, action: Action) -> list[Tensor] | None:
        """Wait for what `action` needs from another rank, if anything. Later receives are posted before."""
        message = self._incoming.get(action)
        if message is not None:
            self._next += 1
            if message not in self._arriving:
                self._post(self._unposted.take_until(message))
        # They travel while this action waits and computes. One that is posted too late also costs processor time:
        # gloo's thread spins until the thread that posted it has let go of the connection.
        for later in self._waits[self._next : self._next + AHEAD]:
            following = self._incoming[later]
            if following not in self._arriving and self._unposted.may_post(following, self.shapes.known):
                self._post(self._unposted.take_until(following))
        if message is None:
            return None
        tensors = []
        for tensor, handle, needs_gradient in self._arriving.pop(message):
            handle.wait()
            # A leaf of this rank's graph, whose `.grad` is what goes back.
            tensors.append(tensor.requires_grad_(needs_gradient))
        # What its sender had received before it made this message has arrived for sure: waiting takes no time now.
        self._release(message)
        return tensors

    def send_for(self, action: Action, tensors: Sequence[Tensor]) -> None:
        """Send what `action` made, where another rank needs it.

        Raises:
            ValueError: Its shapes differ from those of the first micro-batch of its kind.
        """
        message = self._outgoing.get(action)
        if message is None:
            return
        # With NCCL receives come first that are earlier in the common order.
        self._post(self._unposted.take_until(message))
        if action.kind == "F":
            self.shapes.announce(message, tensors)
        for tensor in tensors:
            # One message to the rank of the next stage (activations) or of the stage before (gradients).
            handle = send(tensor.detach().contiguous(), message.to, self._group)
            self._leaving.setdefault(message.to, []).append((self._place[message.needed], handle))

    def end(self) -> None:
        """Wait until everything has left."""
        # No message has shown yet that these have arrived.
        for sent in self._leaving.values():
            for _, handle in sent:
                handle.wait()
        self._leaving.clear()
        self.shapes.end()

    def _post(self, messages: Sequence[Message]) -> None:
        for message in messages:
            arriving = self._arriving[message] = []
            for shape, dtype, needs_gradient in self.shapes.of(message):
                buffer = torch.empty(shape, dtype=dtype, device=self._device)
                # One message from the rank of the stage before (activations) or of the next stage (gradients).
                arriving.append((buffer, receive(buffer, message.source, self._group), needs_gradient))

    def _release(self, message: Message) -> None:
        """Release the tensors that the sender of `message` must have received before it made it."""
        kept = []
        for place, handle in self._leaving.get(message.source, []):
            if place < self._place[message.made]:
                handle.wait()
            else:
                kept.append((place, handle))
        self._leaving[message.source] = kept
