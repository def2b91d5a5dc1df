"""Messages between the ranks of a pipeline: in which order, of what shape, and how long what was sent is kept.

**Idea.** The schedule says all that both ends must know. A message is what one action makes and another needs. Between
two ranks messages carry no name: the first sent is the first received. So the receiver posts its receives in the order
in which the sender acts, whatever it needs first, and chunks cannot mix.

**When receives are posted.** Before an action waits for its message, the receives of the next two that need one are
posted: these messages travel while it waits and computes. Posted too late a receive costs processor time: the sender's
gloo answers it at once, while the thread that posted it may not yet have let go of the connection, and our gloo's
thread spins until it has.

gloo would allow any order between different ranks. NCCL carries the messages of a rank one after another, sent and
received alike, so there all ranks keep one common order: that in which the messages would be made if F, I and W all
took equally long. The earliest message that has not arrived can always travel: whatever its two ranks have to do before
it is made by earlier messages, and these have arrived.

**When sends are done.** What was sent is kept until its receiver has shown that it has it, by a message that it made
later; then waiting takes no time. What is still under way at the end of the step is waited for there.

**Shapes.** The first micro-batch that crosses a boundary is announced by a control message: shape and dtype of its
tensors, and which of them need a gradient. Micro-batches whose inputs look alike are taken to look alike everywhere.
Gradients look like what they are the gradients of, and need no announcement.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import control
from minitrain.comm.messages import Handle, receive, send
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.simulator import simulate

TAG = 1  # of announcements; virtual times, which travel on the same connections, have 0
PAGE = 512  # bytes of an announcement that travel at once
AHEAD = 2  # receives that are posted beyond what is waited for: their buffers are held before they are full


class Message(NamedTuple):
    """What crosses between two ranks: `made` by an action of the one, `needed` by an action of the other."""

    made: Action
    needed: Action


class Look(NamedTuple):
    """What a receiver must know of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"


def looks(tensors: Sequence[Tensor]) -> list[Look]:
    """What a receiver must know of each of `tensors`."""
    return [Look(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors]


def in_common_order(schedule: Schedule) -> list[Message]:
    """All messages of a step, in the order in which they would be made if F, I and W all took equally long."""
    ends = {slot.action: slot.end for row in simulate(schedule, 1, 1, 1).slots for slot in row}
    found = [
        Message(need, action)
        for action in ends
        for need in schedule.needs(action)
        if schedule.rank_of(need.stage) != schedule.rank_of(action.stage)
    ]
    return sorted(found, key=lambda message: (ends[message.made], message))


class Mail:
    """Sends and receives what the actions of one rank make and need.

    Args:
        schedule: What the ranks do.
        rank: This rank within `group`.
        group: The ranks of the pipeline.
        device: Where received tensors lie.
        in_order: Keep the common order also between different ranks, as NCCL needs; None: where it is NCCL.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
        in_order: bool | None = None,
    ):
        self._schedule, self._group, self._device = schedule, group, device
        self._in_order = dist.get_backend(group) == "nccl" if in_order is None else in_order
        self._place = {action: place for row in schedule.actions for place, action in enumerate(row)}
        self._incoming: dict[Action, Message] = {}  # by the action that needs it
        self._outgoing: dict[Action, Message] = {}  # by the action that makes it
        self._turn: dict[Message, int] = {}  # where this rank's messages stand in the common order
        for message in in_common_order(schedule):
            to, source = self._ends(message)
            if rank == source:
                self._outgoing[message.made] = message
            elif rank == to:
                self._incoming[message.needed] = message
            if rank in (source, to):
                self._turn[message] = len(self._turn)
        self._waits = sorted(self._incoming, key=lambda action: self._place[action])  # in the order of our actions
        self.begin(None)

    def begin(self, kinds: Sequence[int] | None) -> None:
        """Start a step.

        Args:
            kinds: On the rank of the first stage, for each micro-batch the number of the first one that looks like it.
        """
        self._kinds = kinds
        self._looks: dict[tuple[int, int], list[Look]] = {}  # (stage, kind) -> of its outputs
        self._gradients: dict[tuple[int, int], list[Look]] = {}  # (stage, micro-batch) -> of its outputs' gradients
        self._queues: dict[int, list[Message]] = {}  # receives to post, in the order of the sender
        self._sends = [message for message in self._turn if message.made in self._outgoing]
        for message in self._turn:
            if message.needed in self._incoming:
                self._queues.setdefault(self._queue(message), []).append(message)
        for queue in (*self._queues.values(), self._sends):
            queue.reverse()  # so that the next is popped from the end
        self._next = 0  # of `_waits`
        self._arriving: dict[Message, list[tuple[Tensor, Handle, bool]]] = {}
        self._leaving: dict[int, list[tuple[int, Handle]]] = {}  # by receiver: place of what needs it there, and handle
        self._announced: list[tuple[Any, Tensor]] = []

    def take(self, action: Action) -> list[Tensor] | None:
        """Wait for what `action` needs from another rank; None if that is nothing. Later receives are posted before."""
        message = self._incoming.get(action)
        if message is not None:
            self._next += 1
            self._post_until(message)
        for later in self._waits[self._next : self._next + AHEAD]:
            following = self._incoming[later]
            if following not in self._arriving and self._may_post(following):
                self._post_until(following)  # it travels while this action waits and computes
        if message is None:
            return None
        tensors = []
        for tensor, handle, needs_gradient in self._arriving.pop(message):
            handle.wait()
            tensors.append(tensor.requires_grad_(needs_gradient))
        self._release(message)
        return tensors

    def give(self, action: Action, tensors: Sequence[Tensor]) -> None:
        """Send what `action` made, where another rank needs it.

        Raises:
            ValueError: It looks unlike that of the first micro-batch of its kind.
        """
        message = self._outgoing.get(action)
        if message is None:
            return
        to, _ = self._ends(message)
        if self._in_order:
            while self._first_of_all() != message:
                self._post(self._queues[0].pop())
            self._sends.pop()
        if action.kind == "F":
            self._announce(action, tensors, to)
        for tensor in tensors:
            # One message to the rank of the next stage (activations) or of the stage before (gradients).
            handle = send(tensor.detach().contiguous(), to, self._group)
            self._leaving.setdefault(to, []).append((self._place[message.needed], handle))

    def expect(self, stage: int, microbatch: int, outputs: Sequence[Tensor]) -> None:
        """Say for which outputs of a stage gradients will come."""
        self._gradients[stage, microbatch] = [look for look in looks(outputs) if look.needs_gradient]

    def end(self) -> None:
        """Wait until everything has left."""
        for sent in self._leaving.values():
            for _, handle in sent:
                handle.wait()
        for work, _ in self._announced:
            work.wait()
        self._leaving.clear()
        self._announced.clear()

    def known(self, stage: int, microbatch: int) -> str:
        """In words, what a micro-batch looks like behind a stage."""
        assert self._kinds is not None
        return ", ".join(map(str, self._looks.get((stage, self._kinds[microbatch]), []))) or "no tensor"

    def first_of_its_kind(self, microbatch: int) -> bool:
        """Whether no micro-batch before looks like this one."""
        assert self._kinds is not None
        return self._kinds[microbatch] == microbatch

    def _ends(self, message: Message) -> tuple[int, int]:
        """Receiver and sender."""
        return self._schedule.rank_of(message.needed.stage), self._schedule.rank_of(message.made.stage)

    def _queue(self, message: Message) -> int:
        return 0 if self._in_order else self._ends(message)[1]

    def _first_of_all(self) -> Message | None:
        """The next of this rank's messages in the common order."""
        heads = [queue[-1] for queue in (self._sends, self._queues.get(0, [])) if queue]
        return min(heads, key=self._turn.__getitem__, default=None)

    def _may_post(self, message: Message) -> bool:
        """Whether all receives up to this one can be posted without waiting for an announcement, or for their turn."""
        for earlier in reversed(self._queues[self._queue(message)]):
            if not self._is_known(earlier):
                return False
            if self._in_order and self._sends and self._turn[self._sends[-1]] < self._turn[earlier]:
                return False
            if earlier == message:
                break
        return True

    def _is_known(self, message: Message) -> bool:
        stage, kind, microbatch = message.made
        if kind == "F":
            return self._kinds is not None and (stage, self._kinds[microbatch]) in self._looks
        return (message.needed.stage, microbatch) in self._gradients

    def _post_until(self, message: Message) -> None:
        queue = self._queues[self._queue(message)]
        while message not in self._arriving:
            self._post(queue.pop())

    def _post(self, message: Message) -> None:
        _, source = self._ends(message)
        stage, kind, microbatch = message.made
        if kind == "F":
            if not self._is_known(message):
                self._hear(stage, microbatch, source)
            assert self._kinds is not None
            expected = self._looks[stage, self._kinds[microbatch]]
        else:
            expected = self._gradients.pop((message.needed.stage, microbatch))
        arriving = self._arriving[message] = []
        for look in expected:
            buffer = torch.empty(look.shape, dtype=look.dtype, device=self._device)
            # One message from the rank of the stage before (activations) or of the next stage (gradients).
            handle = receive(buffer, source, self._group)
            arriving.append((buffer, handle, kind == "F" and look.needs_gradient))

    def _release(self, message: Message) -> None:
        """Let go of what the sender of `message` must have received before it made that."""
        _, source = self._ends(message)
        kept = []
        for place, handle in self._leaving.get(source, []):
            if place < self._place[message.made]:
                handle.wait()
            else:
                kept.append((place, handle))
        self._leaving[source] = kept

    def _announce(self, action: Action, tensors: Sequence[Tensor], to: int) -> None:
        stage, _, microbatch = action
        assert self._kinds is not None
        found, key = looks(tensors), (stage, self._kinds[microbatch])
        if key in self._looks:
            if self._looks[key] != found:
                raise ValueError(
                    f"stage {stage} gave {', '.join(map(str, found))} for micro-batch {microbatch}, but "
                    f"{self.known(stage, microbatch)} for micro-batch {key[1]}, whose inputs look the same; the next "
                    "stage cannot know that, so let shapes follow from the shapes of the inputs alone"
                )
            return
        self._looks[key] = found
        text = pickle.dumps((self._kinds, found))
        whole = len(text).to_bytes(8, "little") + text
        for part in (whole[:PAGE].ljust(PAGE), whole[PAGE:]):
            if part:
                page = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                # What the tensors look like, to the rank that will receive them; seldom more than a page.
                self._announced.append((control(self._group).send([page], to, TAG), page))

    def _hear(self, stage: int, microbatch: int, source: int) -> None:
        """Wait for an announcement."""
        whole = b""
        size = PAGE
        while size > 0:
            page = torch.empty(size, dtype=torch.uint8)
            # The announcement of `stage`, from its rank; a second part where one page is too short.
            control(self._group).recv([page], source, TAG).wait()
            whole += bytes(page.numpy())
            size = 8 + int.from_bytes(whole[:8], "little") - len(whole)
        self._kinds, found = pickle.loads(whole[8:])
        self._looks[stage, self._kinds[microbatch]] = found
