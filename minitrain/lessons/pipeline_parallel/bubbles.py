"""Bubbles on the virtual clock: the theory of each schedule, and the values read off the actions of real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.pipeline_parallel.full.action_observers import Cost
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.drawing import KINDS
from minitrain.pipeline_parallel.full.simulator import simulate

Time = Fraction
Times = tuple[Time, Time, Time]  # F, I and W; where B is whole it takes I + W

# Of one chunk in virtual seconds. W ≤ F ≤ I, as the formulas of zero bubble want it, and all different, so that no two
# can be mistaken for each other; dyadic, so that no sum rounds and the clock shows the formula to the last digit.
FORWARD, BACKWARD, WEIGHT = Time(1), Time(3, 2), Time(1, 2)
EQUAL = (Time(1), Time(1), Time(1))
HUANG, NARAYANAN, ZERO = "Huang et al. 2019", "Narayanan et al. 2021", "Qi et al. 2023"


class Law(NamedTuple):
    """The theory of a schedule's bubble.

    Attributes:
        formula: Of the bubble over the total time of a step, as a text writes it.
        seconds: The bubble, from p, m, v and the times of a rank.
        source: Paper and section.
        over_total: The formula's value, from p, m and v, where it does not depend on times.
    """

    formula: str
    seconds: Callable[[int, int, int, Times], costs.Time]
    source: str
    over_total: Callable[[int, int, int], Fraction] | None = None

    def of_a_step(self, ranks: int, microbatches: int, chunks: int, times: Times) -> float:
        """The formula's value."""
        if self.over_total:
            return float(self.over_total(ranks, microbatches, chunks))
        bubble = self.seconds(ranks, microbatches, chunks, times)
        return float(bubble / (costs.ideal_time(microbatches, *times) + bubble))


def _bubble(p: int, m: int, v: int, times: Times) -> costs.Time:
    return costs.bubble(p, *times, chunks=v)


ONE_CHUNK = Law("(p−1)/(m+p−1)", _bubble, f"{HUANG}, §2.3", costs.bubble_over_total)
LAWS = {
    "naive": Law(
        "(p−1)/p",
        lambda p, m, v, t: costs.naive_bubble(p, m, *t),
        f"{HUANG}, §2.2",
        lambda p, m, v: costs.naive_bubble_over_total(p),
    ),
    "gpipe": ONE_CHUNK,
    "1f1b": ONE_CHUNK,
    "interleaved": Law("(p−1)/(v·m+p−1)", _bubble, "derived", costs.bubble_over_total),
    "zb-h1": Law(
        "b/(m(F+I+W)+b), b = (p−1)(F+I) − (min(m, p)−1)W",
        lambda p, m, v, t: costs.zero_bubble_h1(p, m, *t),
        f"{ZERO}, table 2 and appendix H",
    ),
    "zb-h2": Law(
        "b/(m(F+I+W)+b), b = (p−1)(F+I) − (min(m, 2p−1)−1)W",
        lambda p, m, v, t: costs.zero_bubble_h2(p, m, *t),
        f"{ZERO}, table 2 and appendix H",
    ),
    "zb-v": Law(
        "b/(m(F+I+W)+b), b = (p−1)(I−W) for m ≥ 2p−1",
        lambda p, m, v, t: costs.zero_bubble_v(p, m, *t),
        f"derived; 0 for F = I = W: {ZERO}, §6",
    ),
}


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


def measured_over_total(spans: Sequence[Span]) -> float:
    """The bubble over the total time, read off the spans of all ranks."""
    idle, busy = idle_and_busy(spans)
    return idle / (idle + busy)


def not_as_simulated(schedule: Schedule, spans: Sequence[Span], times: tuple[Cost, Cost, Cost]) -> int:
    """How many actions began or ended at another time than in the simulator; `times` are those of a stage."""
    expected = {
        str(action): (float(start), float(end))
        for row in simulate(schedule, *times).slots
        for action, start, end in row
    }
    found = {span.label: (span.start, span.end) for span in spans}
    return sum(found.get(label) != slot for label, slot in expected.items())
