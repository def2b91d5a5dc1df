"""Observers of a pipeline's actions: one lets virtual time pass, the other records a timeline.

`Pipeline(…, watch=…)` calls its observer with each action. The context manager that it returns is entered when all that
the action needs has arrived, and left before the result is sent. So it spans the action's own time, without waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from minitrain.comm.timeline import Timeline, VirtualClock
from minitrain.pipeline_parallel.full.actions import Action, Watch
from minitrain.pipeline_parallel.full.drawing import KINDS
from minitrain.pipeline_parallel.full.simulator import Time

Cost = Time | Sequence[Time]


def on_virtual_clock(clock: VirtualClock, times: tuple[Cost, Cost, Cost]) -> Watch:
    """Each action takes virtual time, and is recorded as a span of `clock.timeline`.

    Args:
        clock: Open it (`with clock:`) around the step, so that messages carry their times.
        times: Virtual seconds of F, I and W of a stage, each one number or one for each stage; B takes I + W.
    """
    forward, backward, weight = times
    parts = {"F": (forward,), "B": (backward, weight), "I": (backward,), "W": (weight,)}

    def watch(action: Action) -> AbstractContextManager[None]:
        costs = [part[action.stage] if isinstance(part, Sequence) else part for part in parts[action.kind]]
        return _pass(clock, float(sum(costs)), action)

    return watch


def on_timeline(timeline: Timeline) -> Watch:
    """Each action is recorded on a timeline of the wall's clock."""
    return lambda action: timeline.span(str(action), KINDS[action.kind][0], "compute")


@contextmanager
def _pass(clock: VirtualClock, seconds: float, action: Action) -> Iterator[None]:
    yield
    clock.work(seconds, str(action), KINDS[action.kind][0])
