"""What the virtual clock saw of a pipeline's actions: how long ranks wait, and whether the simulator said so."""

from __future__ import annotations

from collections.abc import Sequence

from minitrain.comm.timeline import Span
from minitrain.pipeline_parallel.full.action_observers import Cost
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.drawing import KINDS
from minitrain.pipeline_parallel.full.simulator import simulate


def actions_of(spans: Sequence[Span]) -> list[Span]:
    """Those spans that are actions, without messages."""
    names = {name for name, _, _ in KINDS.values()}
    return [span for span in spans if span.kind in names]


def idle_and_busy(spans: Sequence[Span]) -> tuple[float, float]:
    """Virtual seconds that the rank which is busy with the step longest waits and works, from the spans of all ranks.

    What any rank works at most is what every rank works; all else in the longest span is waiting.
    """
    ranks = {span.rank for span in spans}
    by_rank = [[span for span in spans if span.rank == rank] for rank in sorted(ranks)]
    longest = max(max(span.end for span in mine) - min(span.start for span in mine) for mine in by_rank)
    busy = max(sum(span.end - span.start for span in mine) for mine in by_rank)
    return longest - busy, busy


def not_as_simulated(schedule: Schedule, spans: Sequence[Span], times: tuple[Cost, Cost, Cost]) -> int:
    """How many actions began or ended at another time than in the simulator; `times` are those of a stage."""
    slots = [slot for row in simulate(schedule, *times).slots for slot in row]
    found = {span.label: (span.start, span.end) for span in spans}
    return sum(found.get(str(action)) != (float(start), float(end)) for action, start, end in slots)
