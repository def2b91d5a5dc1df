"""The lesson of `minitrain.parameter_server.asynchronous`: what a bound on staleness gains, and that it holds."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import staleness as costs
from minitrain.lessons.parameter_server import runs
from minitrain.lessons.parameter_server.runs import FAST, SLOW, Plan, Trace
from minitrain.lessons.pictures import parameter_server as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.parameter_server import asynchronous
from minitrain.parameter_server.full.asynchronous import Update, on_gloo
from minitrain.parameter_server.full.roles import Roles, split_roles

PAPER = "Ho et al. 2013, §2"
LEAD = "most steps that a worker that begins one is ahead of the slowest, in each run", "s"
STALEST = "updates that the stalest gradient missed, in each run", "(n−1)(2s+1)"
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
        for row in (LEAD, STALEST, (REPLAYED, "0"), (gained, bounded)):
            rows.needs(2, *row)
        return rows.claims()
    roles = on_gloo(split_roles(1))
    slow = roles.workers[-1]
    trace = small_run(world, roles, staleness, Plan(steps=8, pause=0.004, slow=slow))
    by_the_log(rows, world, roles, "small form, random delays", trace, staleness)

    traces, times = {}, [SLOW if worker == slow else FAST for worker in roles.workers]
    for bound in dict.fromkeys((0, staleness, None)):
        case = f"s = {'∞' if bound is None else bound}"
        trace = traces[case] = runs.of_the_server(runs.train(world, roles, bound, Plan(seconds=seconds, slow=slow)))
        formula, predicted = bounded if bound is not None else "Σ ⌊T/tᵥ⌋", costs.steps_until(seconds, times, bound)
        made = sum(update.time <= seconds for update in trace.updates)
        rows.add(gained, formula, predicted, made, "1", "derived", case=case, how="virtual clock")
        if bound is not None:
            by_the_log(rows, world, roles, f"full form, {case}", trace, bound)
    world.figure(lambda: pictures.staleness(traces, seconds))
    return rows.claims()


def small_run(world: World, roles: Roles, staleness: int, plan: Plan) -> Trace:
    """A run of the small form in real time: the server's log and parameters.

    Workers sleep by chance, and the slow one long: without a bound the others would be far ahead of it.
    """
    model, log, pulled = runs.small_model(world, seed=world.rank), [], []
    if roles.serves:
        server = asynchronous.AsynchronousServer(model, runs.optimizer_of(roles), staleness, roles.group)
        server.serve(plan.steps)
        log = server.log
    else:
        pulled = runs.work(world, model, asynchronous.AsynchronousWorker(model, roles.group), plan)
    # Staleness: the updates between an update's pull and itself.
    updates = [Update(w, step, v, number - v, 0.0, True) for number, (w, step, v) in enumerate(log)]
    return runs.of_the_server(Trace(updates, parameters=runs.flat(model), pulled={world.rank: pulled}))


def by_the_log(rows: Rows, world: World, roles: Roles, case: str, trace: Trace, staleness: int) -> None:
    """Claim that workers keep the bound, and that the server's log says all: nothing lost, nothing applied twice.

    Bits are equal: a gradient is the same operations on the same numbers, and so is each update. So a worker's
    parameters tell which version it had pulled, whatever the log says.
    """
    versions = runs.versions_of(world, roles, trace.updates)
    updates = runs.as_pulled(trace, versions)
    rows.add(*LEAD, staleness, most_ahead(updates), "1", case=case, relation="<=")
    stale, stalest = costs.most_stale(len(roles.workers), staleness), max(update.staleness for update in updates)
    rows.add(*STALEST, stale, stalest, "1", f"derived from {PAPER}", case=case, relation="<=")
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
