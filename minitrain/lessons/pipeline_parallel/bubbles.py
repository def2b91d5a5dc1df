"""What the demo of `executor` shows on the virtual clock: every bubble, from real messages between real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.pipeline_parallel.full.action_observers import Cost
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.drawing import KINDS
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import SCHEDULES

Time = Fraction
Times = tuple[Time, Time, Time]  # F, I and W of a rank; where B is whole it takes I + W

# Of one chunk in virtual seconds. W ≤ F and W ≤ I, as H1 and H2 want it; dyadic, so that no sum of times rounds and the
# clock shows the formula to the last digit.
FORWARD, BACKWARD, WEIGHT = Time(1), Time(1), Time(1, 2)
EQUAL = (Time(1), Time(1), Time(1))
CHUNKS = {"interleaved": 2, "zb-v": 2}
NARAYANAN, ZERO = "Narayanan et al. 2021", "Qi et al. 2023"


class Law(NamedTuple):
    """What theory says of a schedule's bubble.

    Attributes:
        formula: Of the bubble over the total time of a step, as a text writes it.
        bubble: From p, m, v and the times of a rank.
        source: Where it stands.
    """

    formula: str
    bubble: Callable[[int, int, int, Times], Time]
    source: str


def _as_gpipe(p: int, m: int, v: int, times: Times) -> Time:
    return Time(costs.bubble(p, *times, chunks=v))


LAWS = {
    "naive": Law("(p−1)/p", lambda p, m, v, t: Time(costs.naive_bubble(p, m, *t)), "Huang et al. 2019, §2.2"),
    "gpipe": Law("(p−1)/(m+p−1)", _as_gpipe, "Huang et al. 2019, §2.3"),
    "1f1b": Law("(p−1)/(m+p−1)", _as_gpipe, f"{NARAYANAN}, §2.2.1"),
    "interleaved": Law("(p−1)/(v·m+p−1)", _as_gpipe, f"{NARAYANAN}, §2.2.2"),
    "zb-h1": Law(
        "b/(m(F+I+W)+b), b = (p−1)(F+I−W) for m ≥ p",
        lambda p, m, v, t: Time(costs.zero_bubble_h1(p, m, *t)),
        f"{ZERO}, table 2",
    ),
    "zb-h2": Law(
        "b/(m(F+I+W)+b), b = (p−1)(F+I−2W) for m ≥ 2p−1",
        lambda p, m, v, t: Time(costs.zero_bubble_h2(p, m, *t)),
        f"{ZERO}, table 2",
    ),
}


def over_total(name: str, ranks: int, microbatches: int, chunks: int, times: Times) -> Time:
    """The bubble over the total time of a step, as theory says."""
    bubble = LAWS[name].bubble(ranks, microbatches, chunks, times)
    return bubble / (Time(costs.ideal_time(microbatches, *times)) + bubble)


def actions_of(spans: Sequence[Span]) -> list[Span]:
    """Those spans that are actions, without messages."""
    names = {name for name, _, _ in KINDS.values()}
    return [span for span in spans if span.kind in names]


def measured_over_total(spans: Sequence[Span]) -> float:
    """The bubble over the total time, read off the spans of all ranks: of the rank that is busy with the step longest.

    What it works at most is what every rank works; all else in the longest span is waiting.
    """
    ranks = {span.rank for span in spans}
    by_rank = [[span for span in spans if span.rank == rank] for rank in sorted(ranks)]
    longest = max(max(span.end for span in mine) - min(span.start for span in mine) for mine in by_rank)
    busy = max(sum(span.end - span.start for span in mine) for mine in by_rank)
    return (longest - busy) / longest


def claim(name: str, ranks: int, microbatches: int, chunks: int, spans: Sequence[Span]) -> Claim:
    """The claim on the bubble of one run, whose spans are those of all ranks."""
    law = LAWS[name]
    times = (chunks * FORWARD, chunks * BACKWARD, chunks * WEIGHT)
    what = f"bubble of {name} over the time of a step" + (f", v = {chunks}" if chunks > 1 else "")
    predicted = float(over_total(name, ranks, microbatches, chunks, times))
    return Claim(what, law.formula, predicted, measured_over_total(spans), "1", law.source, "virtual clock")


def not_as_simulated(schedule: Schedule, spans: Sequence[Span], times: tuple[Cost, Cost, Cost]) -> int:
    """How many actions began or ended at another time than in the simulator; `times` are those of a stage."""
    expected = {
        str(action): (float(start), float(end))
        for row in simulate(schedule, *times).slots
        for action, start, end in row
    }
    found = {span.label: (span.start, span.end) for span in spans}
    return sum(found.get(label) != slot for label, slot in expected.items())


def grid(world: World, pipeline: Callable[..., object], watch: Callable[..., object]) -> list[Claim]:
    """Claims on all schedules over many p and m, each on real ranks: the first p of them.

    Args:
        world: This rank.
        pipeline: The class that runs a schedule.
        watch: Makes of a clock and the times of a stage what lets virtual time pass.
    """
    sizes = [size for size in range(2, world.size + 1) if size < 5 or size in (world.size // 2, world.size)]
    groups = {size: new_group(list(range(size))) for size in sizes}  # on every rank, also where it is not in it
    cases: list[tuple[str, Schedule, Times]] = []
    mine: list[list[Span]] = []  # for each case the actions of this rank
    for name in SCHEDULES:
        for ranks in sizes:
            for microbatches, times in _cases(name, ranks):
                schedule = SCHEDULES[name](ranks, microbatches, CHUNKS.get(name, 1))
                cases.append((name, schedule, times))
                spans: list[Span] = []
                if world.rank < ranks:
                    stage = _of_a_stage(times, schedule)
                    spans = _run(world, schedule, groups[ranks], pipeline, partial(watch, times=stage))
                mine.append(spans)
    worst = dict.fromkeys(LAWS, 0.0)
    elsewhere = 0
    for (name, schedule, times), by_rank in zip(cases, zip(*gather_objects(mine), strict=True), strict=True):
        spans = [span for theirs in by_rank for span in theirs]
        elsewhere += not_as_simulated(schedule, spans, _of_a_stage(times, schedule))
        if name in LAWS:
            predicted = over_total(name, schedule.ranks, schedule.microbatches, schedule.chunks, times)
            worst[name] = max(worst[name], abs(measured_over_total(spans) - float(predicted)))
    return _grid_claims(worst, elsewhere, world.size)


def _grid_claims(worst: dict[str, float], elsewhere: int, ranks: int) -> list[Claim]:
    over = "p from 2 to n ranks and several m"
    each = f"for {over}: largest distance from its formula"
    laws = {name: (f"bubble of {name} over the time of a step, {each}", LAWS[name].source) for name in worst}
    what, source = f"actions of all schedules, {over}, at another time than in the simulator", f"{ZERO}, appendix G"
    if ranks < 2:
        needed = [*laws.values(), (what, source)]
        return [Claim.needs_ranks(2, each, "0", where) for each, where in needed]
    return [
        *(Claim(laws[name][0], "0", 0, far, "1", laws[name][1], "virtual clock") for name, far in worst.items()),
        Claim(what, "0", 0, elsewhere, "1", source, "virtual clock"),
    ]


def _of_a_stage(times: Times, schedule: Schedule) -> Times:
    """What a chunk takes, where the rank that holds v of them takes `times`."""
    forward, backward, weight = times
    return forward / schedule.chunks, backward / schedule.chunks, weight / schedule.chunks


def _cases(name: str, ranks: int) -> list[tuple[int, Times]]:
    """Numbers of micro-batches, fewer and more than there are ranks, with the times of a rank."""
    unequal = (2 * FORWARD, 2 * BACKWARD, 2 * WEIGHT)
    if name == "interleaved":
        return [(ranks, EQUAL), (2 * ranks, unequal)]
    return [(max(1, ranks - 1), EQUAL), (2 * ranks + 1, unequal)]


def _run(
    world: World,
    schedule: Schedule,
    group: Any,
    pipeline: Callable[..., object],
    watch: Callable[..., object],
) -> list[Span]:
    """One step of the smallest stages that can be; returns the actions of this rank on the virtual clock."""
    stages = [nn.Linear(1, 1).to(world.device) for _ in schedule.stages_of(world.rank)]
    clock = VirtualClock()
    running = pipeline(stages, schedule, lambda outputs, target: outputs.sum(), group, watch=watch(clock))
    inputs = [torch.ones(1, 1, device=world.device)] * schedule.microbatches
    with clock:
        running.step(inputs, inputs)  # type: ignore[attr-defined]
    return actions_of(clock.timeline.spans)
