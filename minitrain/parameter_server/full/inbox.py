"""A server's inbox: a thread for each worker receives what it sends, and the server takes the messages one at a time.

An asynchronous server cannot know which worker sends next. NCCL has no receive from whichever rank sends first, and
gloo's does not help while several tensors belong together. So a thread waits for each worker and puts its message
together, and only complete messages reach the server: if a worker dies halfway through a push, none of it is applied.

Before its data, each message has an announcement (a control message): what it is, at which virtual time it left, and
which gradients there are. The wait for an announcement has a time limit of its own, since a worker may compute for as
long as it likes before it sends one; the data follows at once.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm import Ledger, VirtualClock, receive
from minitrain.comm.control import control

TAG = 2  # of announcements and answers; virtual times have 0 on the same connections, a pipeline's announcements 1
PATIENCE = timedelta(hours=1)  # a worker may compute or be held for this long; a death is noticed at once
PUSH, PULL, LEAVE, DEATH = range(4)  # in the order in which they are served at equal virtual times


@dataclass(frozen=True)
class Message:
    """A worker's message; virtual times are 0 without a virtual clock."""

    kind: int  # PUSH, PULL, LEAVE, or DEATH, which the worker's thread writes for it
    worker: int  # its sender, within the group
    left: float = 0.0  # the virtual time at which the last of it had left its sender
    gradients: tuple[Tensor | None, ...] = ()  # of a push: of each parameter, None where the worker had none
    times: tuple[float, ...] = ()  # for each gradient the virtual time at which it had left


class Inbox:
    """Receives from all workers at once.

    Args:
        parameters: The gradients' shapes; they are received on the same device.
        workers: Ranks that send, within `group`, which is gloo's.
        ledger: Counts what the threads receive.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        workers: Sequence[int],
        group: dist.ProcessGroup | None,
        ledger: Ledger | None,
    ):
        self._parameters, self._group, self._ledger = parameters, group, ledger
        self._arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._waiting: dict[int, deque[Message]] = {worker: deque() for worker in workers}
        self._virtual = VirtualClock.active() is not None
        for worker in workers:
            # Daemons: a server that fails does not wait for its workers.
            threading.Thread(target=self._listen, args=(worker,), daemon=True, name=f"from worker {worker}").start()

    def take(self, senders: Collection[int]) -> Message:
        """The next message.

        Which thread wakes first is a matter of chance. On a virtual clock, the inbox therefore waits until every worker
        that can send has sent, and gives the message of the smallest virtual time: pushes before pulls, then the lower
        rank. Nothing that comes later can be earlier, so a run repeats to the last bit. This is the conservative rule
        of Chandy & Misra 1979, "Distributed Simulation: A Case Study in Design and Verification of Distributed
        Programs". `senders` can send: they have neither left nor died, and do not wait for an answer.
        """
        # In real time the order of arrival is the order.
        if not self._virtual:
            return self._arrived.get()
        while not all(self._waiting[worker] for worker in senders):
            message = self._arrived.get()
            self._waiting[message.worker].append(message)
        first = min((row[0] for row in self._waiting.values() if row), key=lambda m: (m.left, m.kind, m.worker))
        return self._waiting[first.worker].popleft()

    def _listen(self, worker: int) -> None:
        """A thread: receive from `worker` until it leaves or dies."""
        # Links are free on this thread's clock: it only reads at which virtual time a message had left.
        clock = VirtualClock() if self._virtual else None
        with clock or nullcontext(), self._ledger or nullcontext():
            while True:
                try:
                    message = self._receive(worker, clock)
                except RuntimeError:  # gloo: the connection is closed
                    message = Message(DEATH, worker, clock.now if clock else 0.0)
                self._arrived.put(message)
                if message.kind in (LEAVE, DEATH):
                    return

    def _receive(self, worker: int, clock: VirtualClock | None) -> Message:
        # float64, which a virtual time needs.
        announcement = torch.empty(2 + len(self._parameters), dtype=torch.float64)
        # This worker's next message; it may take as long as it computes.
        control(self._group).recv([announcement], worker, TAG).wait(PATIENCE)
        kind, left, *present = announcement.tolist()
        if clock:
            clock.wait_until(left)
        gradients, times = [], []
        for parameter, there in zip(self._parameters, present, strict=True):
            gradient = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device) if there else None
            if gradient is not None:
                # One gradient, in the order of the module's parameters.
                receive(gradient, worker, self._group).wait()
            gradients.append(gradient)
            times.append(clock.now if clock else 0.0)
        return Message(int(kind), worker, clock.now if clock else 0.0, tuple(gradients), tuple(times))


def announce(kind: int, present: Sequence[bool], server: int, group: dist.ProcessGroup | None) -> None:
    """Tell the server what comes next; `present`: for each parameter, whether its gradient does."""
    clock = VirtualClock.active()
    announcement = torch.tensor([kind, clock.now if clock else 0.0, *present], dtype=torch.float64)
    control(group).send([announcement], server, TAG).wait()
