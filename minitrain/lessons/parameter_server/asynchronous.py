"""The lesson of `minitrain.parameter_server.asynchronous`: what a bound on staleness gains, and that it holds."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.comm.groups import backend, new_group
from minitrain.costs import staleness as costs
from minitrain.lessons.parameter_server import runs
from minitrain.lessons.parameter_server.runs import Trace, Update
from minitrain.lessons.pictures import parameter_server as pictures
from minitrain.lessons.rows import Claim, Rows

FAST, SLOW = 1.0, 4.0  # virtual seconds of a step; whole numbers, so that no sum of times rounds
PAPER = "Ho et al. 2013, §2"
LEAD = "most steps that a worker that begins one is ahead of the slowest, in each run", "s"
REPLAYED = "parameters that differ from the log's, replayed on one device, in each run"


def demo(world: World, seconds: int = 32) -> list[Claim]:
    """Trains with a slow worker and a bound of 0, s or none; the table shows steps gained, and how stale gradients are.

    Args:
        seconds: Virtual seconds of each run.
    """
    rows, staleness = Rows(PAPER), 2  # s: steps that a worker may be ahead of the slowest when it begins one
    gained = f"updates in {seconds} virtual seconds, with a bound of 0, of {staleness}, and without one"
    bounded = "Σ min(⌊T/tᵥ⌋, ⌊(T−tᵥ)/t⌋ + s + 1)"
    if world.size < 2:
        for row in (LEAD, (REPLAYED, "0"), (gained, bounded)):
            rows.needs(2, *row)
        return rows.claims()
    # Everyone, on gloo even where GPUs compute.
    group = None if backend() == "gloo" else new_group(range(world.size), backend="gloo")
    by_the_log(rows, world, "random delays", runs.in_real_time(world, staleness, 8, group), staleness)

    traces, times = {}, {worker: FAST for worker in range(1, world.size - 1)} | {world.size - 1: SLOW}
    for bound in (0, staleness, None):
        case = f"s = {'∞' if bound is None else bound}"
        trace = traces[case] = runs.train(world, runs.timetable(times, bound, seconds), bound, group)
        formula = bounded if bound is not None else "Σ ⌊T/tᵥ⌋"
        predicted = costs.steps_until(seconds, list(times.values()), bound)
        made = sum(update.time <= seconds for update in trace.updates)
        rows.add(gained, formula, predicted, made, "1", "derived", case=case, how="virtual clock")
        if bound is not None:
            by_the_log(rows, world, case, trace, bound)
    world.figure(lambda: pictures.staleness(traces, seconds))
    return rows.claims()


def by_the_log(rows: Rows, world: World, case: str, trace: Trace, staleness: int) -> None:
    """Claim that workers keep the bound, and that the server's log says all: nothing lost, nothing applied twice.

    Bits are equal: a gradient is the same operations on the same numbers, and so is each update. So a worker's
    parameters tell which version it had pulled, whatever the log says.
    """
    versions = runs.versions_of(world, trace.updates)
    updates = runs.as_pulled(trace, versions)
    rows.add(*LEAD, staleness, most_ahead(updates), "1", case=case, relation="<=")
    rows.equal(REPLAYED, versions[-1], trace.parameters, case=case)


def most_ahead(updates: list[Update]) -> int:
    """The most steps by which a worker was ahead of the slowest that was still there, when it pulled.

    What a worker pulled has as many updates in it as had come by then, so it tells what all had finished.
    """
    last = {update.worker: number for number, update in enumerate(updates)}
    most = 0
    for update in updates:
        before = [each.worker for each in updates[: update.version]]
        there = [before.count(worker) for worker, number in last.items() if number >= update.version]
        most = max(most, update.step - min(there))
    return most
