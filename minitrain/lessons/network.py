"""A network that carries messages while its rank computes on, in virtual time: what a stream of its own is to a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import VirtualClock
from minitrain.comm.messages import Handle


class Network:
    """The ring as collectives: real messages, on a virtual clock of their own.

    A collective begins when it has been called and the one before it is done. It takes no time of the rank that called
    it; `wait()` moves that rank's clock to the time at which the collective has finished.

    Args:
        compute: The rank's own clock, whose timeline also records what the network does.
        alpha: Virtual seconds per message.
        beta: Virtual seconds per byte.
        numbered: Whether spans are labeled 1, 2, …; otherwise by what is done.

    Attributes:
        clock: The network's clock.
    """

    broadcast = staticmethod(ring.broadcast)  # before the first step, and not timed

    def __init__(self, compute: VirtualClock, alpha: float, beta: float, numbered: bool = False):
        self._compute, self.clock, self._numbered = compute, VirtualClock(alpha, beta), numbered
        self._calls = 0

    def all_gather(
        self, tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None
    ) -> Handle:
        return self._carry("gather", lambda: ring.all_gather(tensor, group, check=check))

    def reduce_scatter(
        self, tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None
    ) -> Handle:
        return self._carry("reduce", lambda: ring.reduce_scatter(tensor, group, check=check))

    def all_reduce(
        self, tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None
    ) -> Handle:
        return self._carry("all-reduce", lambda: ring.all_reduce(tensor, group, check=check))

    def _carry(self, label: str, start: Callable[[], Handle]) -> Handle:
        self.clock.wait_until(self._compute.now)
        begin = self.clock.now
        with self.clock:
            result = start().wait()
        end = self.clock.now
        self._calls += 1
        label = f"{self._calls}" if self._numbered else label
        self._compute.timeline.record(label, "communicate", "network", begin, end)
        return Handle((), result, lambda: self._compute.wait_until(end))
