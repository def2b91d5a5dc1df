"""When each action of a schedule happens, how long ranks wait, and how much they hold meanwhile.

**Idea.** Given the cost of each action, its start follows: it begins when its rank is free and its inputs have arrived,
whichever is later. Bubbles and memory can be read off the table of starts and ends.

**Source.** Qi et al. 2023, "Zero Bubble Pipeline Parallelism", appendix G, constraints (4) to (6), without the search.

**What is left out.** Sending takes none of a rank's time, and messages do not queue for a port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from minitrain.pipeline_parallel.full.actions import Action, Schedule, in_turn

Time = float | Fraction


class Slot(NamedTuple):
    """An action, when it begins, and when its result can leave."""

    action: Action
    start: Time
    end: Time


@dataclass(frozen=True)
class Timetable:
    """A schedule with times, in the unit of the costs that it was made with.

    A step costs the longest time that any rank is busy with it, `longest_span`, where ranks need not wait for each
    other between steps, and begin the next one that much later, each when it is done (Qi et al. 2023, §5.3). `makespan`
    is the same where one rank starts first and ends last, as in all schedules without W. Idle time is compared with
    work (`bubble_over_ideal`, which can exceed 1) or with all time (`bubble_over_total`, which cannot).

    Attributes:
        schedule, slots: The simulated schedule, and for each rank its actions with start and end, in order.
    """

    schedule: Schedule
    slots: tuple[tuple[Slot, ...], ...]

    @cached_property
    def makespan(self) -> Time:
        """From the first start anywhere, 0, to the last end anywhere: the cost of a step if all ranks then wait."""
        return max(row[-1].end for row in self.slots)

    @cached_property
    def spans(self) -> list[Time]:
        """For each rank, from its first start to its last end."""
        return [row[-1].end - row[0].start for row in self.slots]

    @cached_property
    def longest_span(self) -> Time:
        """The cost of a step if no rank waits for others after it (Qi et al. 2023, §5.3)."""
        return max(self.spans)

    @cached_property
    def busy(self) -> list[Time]:
        """For each rank, how long it works."""
        return [sum((slot.end - slot.start for slot in row), start=0) for row in self.slots]

    @property
    def ideal(self) -> Time:
        """The work of the busiest rank: no order can make a step cost less."""
        return max(self.busy)

    @property
    def bubble(self) -> Time:
        """The cost of a step beyond the ideal: `longest_span` − `ideal`."""
        return self.longest_span - self.ideal

    @property
    def bubble_over_ideal(self) -> Time:
        """Idle time over work, (p−1)/m for GPipe; may exceed 1 (Narayanan et al. 2021, §2.2)."""
        return self.bubble / self.ideal

    @property
    def bubble_over_total(self) -> Time:
        """Idle time over all time, (p−1)/(m+p−1) for GPipe (Huang et al. 2019, §2.3; Qi et al. 2023, §5.3)."""
        return self.bubble / self.longest_span

    @cached_property
    def idle(self) -> list[Time]:
        """For each rank, how long it does nothing in a step: `longest_span` minus its work."""
        # Not the makespan: a rank that begins later also ends later, and goes on with the next step meanwhile.
        return [self.longest_span - busy for busy in self.busy]

    def in_flight(self, rank: int, full: Time = 1, rest: Time = 1) -> list[tuple[Time, Time]]:
        """The number of micro-batches whose activations `rank` holds, over time; each counts once per chunk.

        Args:
            rank: Which rank.
            full: The weight of a micro-batch until I has ended, such as the bytes of its activations (the paper's M_B).
            rest: Its weight from then until W has ended (the paper's M_W); 0 counts up to I only.

        Returns:
            Pairs of a time and what is held from then on.
        """
        # From the *start* of F, when memory begins to fill, to the *end* of B, or of W, which needs the layers' inputs.
        held, steps = 0, []
        for action, start, end in self.slots[rank]:
            if action.kind == "F":
                held += full
                steps.append((start, held))
            else:
                held -= {"B": full, "I": full - rest, "W": rest}[action.kind]
                steps.append((end, held))
        return steps

    def peak_in_flight(self, rank: int, full: Time = 1, rest: Time = 1) -> Time:
        """The most that `rank` holds at any time, counted as by `in_flight`."""
        return max(held for _, held in self.in_flight(rank, full, rest))


def simulate(
    schedule: Schedule,
    forward: Time | Sequence[Time],
    backward: Time | Sequence[Time],
    weight: Time | Sequence[Time],
    message: Time = 0,
) -> Timetable:
    """Work out when each action starts and ends. Exact for `Fraction` and whole numbers.

    Args:
        schedule: The actions of each rank.
        forward: The cost of F: one number, or one per stage. In a model cut into v·p stages, a stage costs 1/v of what
            a rank costs.
        backward: The cost of I, likewise.
        weight: The cost of W, likewise. B costs `backward + weight`.
        message: How long a message between two ranks takes.

    Raises:
        ValueError: A cost is negative, their number is not that of stages, or the schedule is not valid.
    """
    forwards = _for_each_stage("forward", forward, schedule.stages)
    inputs = _for_each_stage("backward", backward, schedule.stages)
    weights = _for_each_stage("weight", weight, schedule.stages)
    if message < 0:
        raise ValueError(f"message={message} is negative; 0 makes messages free")
    wholes = [first + second for first, second in zip(inputs, weights, strict=True)]
    costs = {"F": forwards, "B": wholes, "I": inputs, "W": weights}
    free: list[Time] = [0] * schedule.ranks  # when each rank has finished what it did so far
    ends: dict[Action, Time] = {}
    rows: list[list[Slot]] = [[] for _ in range(schedule.ranks)]
    # In such an order, the end of everything that an action needs is known before it.
    for action, needs in in_turn(schedule):
        rank = schedule.rank_of(action.stage)
        start = free[rank]
        for need in needs:
            # Within a rank there are no messages. Between two, one arrives `message` after its sender has finished.
            there = ends[need] if schedule.rank_of(need.stage) == rank else ends[need] + message
            start = max(start, there)
        free[rank] = ends[action] = start + costs[action.kind][action.stage]
        rows[rank].append(Slot(action, start, ends[action]))
    return Timetable(schedule, tuple(tuple(row) for row in rows))


def _for_each_stage(argument: str, cost: Time | Sequence[Time], stages: int) -> list[Time]:
    each = list(cost) if isinstance(cost, Sequence) else [cost] * stages
    if len(each) != stages:
        raise ValueError(
            f"{argument} has {len(each)} costs for {stages} stages; give one number, or one for each stage"
        )
    if min(each) < 0:
        raise ValueError(f"{argument}={cost} is negative; an action takes time")
    return each
