"""The rule of bounded staleness in every order in which workers can begin and finish steps, without a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

from minitrain.parameter_server.asynchronous import AsynchronousServer


class Extremes(NamedTuple):
    """The worst that happened over many orders of events."""

    lead: int  # steps that a worker was ahead of the slowest when it began one
    staleness: int  # updates between a worker's pull and its push
    states: int  # different states that were reached


def every_order(workers: int, staleness: int) -> Extremes:
    """Try the small form's rule in every order in which `workers` workers can begin and finish steps, forever.

    The future depends only on the leads, on which workers are in a step, and on how many updates came since it began.
    There are finitely many such states, and each is visited once. A wrong rule may lead to more and more states, so all
    ends when a worker begins too far ahead, or a gradient is far too stale.
    """
    # For each worker its lead, and the updates since its step began.
    start: tuple[tuple[int, int | None], ...] = tuple((0, None) for _ in range(workers))
    seen, todo, lead, stale = {start}, [start], 0, 0
    enough = 4 * workers * (staleness + 1)  # updates, well above what the rule allows
    while todo and lead <= staleness and stale <= enough:
        state = todo.pop()
        for worker, (ahead, updates) in enumerate(state):
            clocks = {other: lead_of_other for other, (lead_of_other, _) in enumerate(state)}
            following = list(state)
            if updates is None:
                server = SimpleNamespace(clocks=clocks, staleness=staleness)
                if not AsynchronousServer.may_begin(server, worker):  # type: ignore[arg-type]
                    continue
                lead = max(lead, ahead)
                following[worker] = (ahead, 0)
            else:
                stale = max(stale, updates)
                clocks[worker] += 1
                slowest = min(clocks.values())
                for other, (_, missed) in enumerate(state):
                    following[other] = (clocks[other] - slowest, None if missed is None else missed + 1)
                following[worker] = (clocks[worker] - slowest, None)
            # Only leads and ages are kept, no counts, so there are finitely many states.
            if (reached := tuple(following)) not in seen:
                seen.add(reached)
                todo.append(reached)
    return Extremes(lead, stale, len(seen))
