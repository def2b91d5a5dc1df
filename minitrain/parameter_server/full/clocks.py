"""The rule of bounded staleness: which worker may begin its next step, and which must wait for the slowest.

**Idea.** A worker's clock counts the steps that it has finished. A worker may begin a step while its clock is at most s
above that of the slowest worker; otherwise it waits. With s = 0 all wait for all, with None none waits.

**Source.** Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", §2.

This file does not deal with messages: it is pure Python, so that every order of events can be tried
(`every_order`) without a process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Clocks:
    """The steps that each worker has finished, and the rule that they obey.

    `staleness` is s, at least 0: steps that a worker may be ahead of the slowest when it begins one; None: no bound.
    """

    def __init__(self, workers: Iterable[int], staleness: int | None):
        if staleness is not None and staleness < 0:
            raise ValueError(f"staleness={staleness} must be 0 (all wait for all) or more, or None for no bound")
        self.staleness = staleness
        self._finished = dict.fromkeys(workers, 0)

    def __getitem__(self, worker: int) -> int:
        return self._finished[worker]

    def lead(self, worker: int) -> int:
        """How many steps `worker` is ahead of the slowest."""
        return self._finished[worker] - min(self._finished.values())

    def may_begin(self, worker: int) -> bool:
        return self.staleness is None or self.lead(worker) <= self.staleness

    def finish(self, worker: int) -> None:
        self._finished[worker] += 1

    def leave(self, worker: int) -> None:
        """Forget `worker`: no rank waits for one that is done, or dead."""
        del self._finished[worker]


class Extremes(NamedTuple):
    """The worst that happened over many orders of events."""

    lead: int  # steps that a worker was ahead of the slowest when it began one
    staleness: int  # updates between a worker's pull and its push
    states: int  # different states that were reached


def every_order(workers: int, staleness: int, rule: type[Clocks] = Clocks) -> Extremes:
    """Try the rule in every order in which `workers` workers can begin and finish steps, for ever.

    The future depends only on the leads, on which workers are in a step, and on how many updates came since it began.
    There are finitely many such states, and each is visited once. A wrong rule may lead to more and more states, so all
    ends when a worker begins too far ahead, or a gradient is far too stale. `rule` is `Clocks` or a subclass of it.
    """
    # For each worker its lead, and the updates since its step began.
    start: tuple[tuple[int, int | None], ...] = tuple((0, None) for _ in range(workers))
    seen, todo, lead, stale = {start}, [start], 0, 0
    enough = 4 * workers * (staleness + 1)  # updates, well above what the rule allows
    while todo and lead <= staleness and stale <= enough:
        state = todo.pop()
        for worker, (_, updates) in enumerate(state):
            # Made anew from the leads: they are the state, and the same ones may be reached in several ways.
            clocks = rule(range(workers), staleness)
            for other, (ahead, _) in enumerate(state):
                for _ in range(ahead):
                    clocks.finish(other)
            following = list(state)
            if updates is None:
                if not clocks.may_begin(worker):
                    continue
                lead = max(lead, clocks.lead(worker))
                following[worker] = (state[worker][0], 0)
            else:
                stale = max(stale, updates)
                clocks.finish(worker)
                for other, (_, missed) in enumerate(state):
                    following[other] = (clocks.lead(other), None if missed is None else missed + 1)
                following[worker] = (clocks.lead(worker), None)
            # Only leads and ages are kept, no counts, so there are finitely many states.
            if (reached := tuple(following)) not in seen:
                seen.add(reached)
                todo.append(reached)
    return Extremes(lead, stale, len(seen))
