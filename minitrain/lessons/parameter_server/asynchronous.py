"""The demo of `asynchronous`: a small model, runs on the virtual clock and in real time, and what they prove."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects, go_on_without
from minitrain.comm.torchrun import under_torchrun
from minitrain.costs import staleness as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.parameter_server import delay as lesson_delay
from minitrain.parameter_server import asynchronous as small
from minitrain.parameter_server.full import asynchronous
from minitrain.parameter_server.full.asynchronous import on_gloo
from minitrain.parameter_server.full.clocks import Clocks, every_order
from minitrain.parameter_server.full.roles import Roles, split_roles
from minitrain.ranks.failures import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Ho et al. 2013, §2"
FAST, SLOW = 1.0, 4.0  # virtual seconds of a step; whole numbers, so that no sum of times rounds
RATE = 0.1  # the learning rate, over the number of workers
WIDTH, COUNTS = 8, 5


@dataclass
class Trace:
    """The server's record of a run.

    Attributes:
        updates: Every gradient that arrived.
        leads: For each pull, the steps that its worker was ahead of the slowest.
        died: Workers that died.
        losses: Virtual time and loss, at the start and after each update.
        parameters: At the end, one after the other.
        sent: Bytes that the server sent.
        received: Bytes that it received.
    """

    updates: list[asynchronous.Update] = field(default_factory=list)
    leads: list[int] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))
    sent: int = 0
    received: int = 0

    @property
    def stalest(self) -> int:
        """The largest staleness of a gradient."""
        return max(update.staleness for update in self.updates)


class Plan(NamedTuple):
    """A worker's behaviour in a run.

    Attributes:
        steps: How many steps it makes at most.
        seconds: It begins no step after so many virtual seconds; 0 where there is no virtual clock.
        slow: The worker whose steps take longer.
        pause: The longest that it sleeps in a step, in real seconds.
        poisoned: The step whose gradient is made NaN.
        dies: The rank that ends itself, in the middle of its fourth step (a worker) or after four updates (the server).
    """

    steps: int = 1000
    seconds: float = 0.0
    slow: int = -1
    pause: float = 0.0
    poisoned: int = -1
    dies: int = -1


def small_model(world: World, seed: int = 0) -> nn.Module:
    """Two layers, deterministic on every device, and a buffer, which workers get with their first pull only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    model.register_buffer("counts", torch.zeros(COUNTS))
    return model.to(world.device)


def batch(
    world: World, worker: int, step: int, samples: int = 32
) -> tuple[Float[Tensor, "samples features"], Float[Tensor, "samples 1"]]:
    """Inputs and targets of a worker's step; the targets are a weighted sum of the inputs."""
    generator = torch.Generator().manual_seed(1000 * step + worker + 1)
    x = torch.randn(samples, WIDTH, generator=generator)
    return x.to(world.device), (x @ torch.linspace(-1, 1, WIDTH))[:, None].to(world.device)


def loss(world: World, model: nn.Module, worker: int, step: int, samples: int = 32) -> Float[Tensor, ""]:
    """Mean squared error on the batch of a worker's step."""
    x, y = batch(world, worker, step, samples)
    return (model(x) - y).square().mean()


def flat(model: nn.Module) -> Float[Tensor, " parameters"]:
    """All parameters, one after the other, on the CPU."""
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


def train(world: World, roles: Roles, staleness: int | None, plan: Plan) -> Trace:
    """Train the small model; returns what the server saw, an empty trace on a worker."""
    model = small_model(world, seed=world.rank)  # the server's is what all begin with
    with VirtualClock() if plan.seconds else nullcontext() as clock:
        if not roles.serves:
            _work(world, model, asynchronous.AsynchronousWorker(model, roles), plan, clock)
            return Trace()
        server = asynchronous.AsynchronousServer(model, _optimizer(roles), roles, staleness)
        losses: list[tuple[float, float]] = []

        def look(moment: float) -> None:
            with torch.no_grad():
                losses.append((moment, loss(world, model, -1, 0, 256).item()))
            if world.rank == plan.dies and len(losses) > 4:
                os._exit(13)

        look(0.0)
        with Ledger() as ledger:
            server.serve(ledger, after=lambda update: look(update.time))
    return Trace(server.updates, server.leads, server.died, losses, flat(model), ledger.sent, ledger.received)


def _optimizer(roles: Roles) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """SGD; when all workers have pushed once, their mean has been applied."""
    return partial(torch.optim.SGD, lr=RATE / len(roles.workers))


def _work(
    world: World, model: nn.Module, worker: asynchronous.AsynchronousWorker, plan: Plan, clock: VirtualClock | None
) -> None:
    chance = random.Random(world.rank)
    for step in range(plan.steps):
        if clock is not None and clock.now >= plan.seconds:
            break
        worker.pull()
        loss(world, model, world.rank, step).backward()
        if clock is not None:
            clock.work(SLOW if world.rank == plan.slow else FAST, f"{step}", "forward")
        time.sleep(plan.pause * chance.random())
        if step == plan.poisoned:
            next(model.parameters()).grad[0] = torch.nan  # type: ignore[index]
        if step == 3 and world.rank == plan.dies:
            os._exit(13)  # as if the machine had failed: without a word
        worker.push()
    worker.leave()


def of_the_server(trace: Trace) -> Trace:
    """The server's trace, on every rank."""
    return next(each for each in gather_objects(trace) if each.updates)


def replayed(world: World, roles: Roles, updates: list[asynchronous.Update]) -> Float[Tensor, " parameters"]:
    """The parameters to which one device comes by a server's log.

    It computes each gradient from the parameters that its worker had pulled, and applies it in the server's order.
    """
    model, copy = small_model(world), small_model(world)
    optimizer = _optimizer(roles)(list(model.parameters()))
    versions = [[parameter.detach().clone() for parameter in model.parameters()]]
    for update in updates:
        if not update.applied:
            continue
        with torch.no_grad():
            for parameter, value in zip(copy.parameters(), versions[update.version], strict=True):
                parameter.copy_(value)
        copy.zero_grad()
        loss(world, copy, update.worker, update.step).backward()
        for parameter, other in zip(model.parameters(), copy.parameters(), strict=True):
            parameter.grad = other.grad
        optimizer.step()
        versions.append([parameter.detach().clone() for parameter in model.parameters()])
    return flat(model)


LEAD = "most steps that a worker that begins one is ahead of the slowest, in each run", "s"
STALEST = "updates that the stalest gradient missed, in each run", "(n−1)(2s+1)"
REPLAYED = "parameters that differ from the log's, replayed on one device, in each run", "0"
SMALL = "small form, random delays"
SMALL_ROWS = (
    (f"{SMALL}: bytes that this rank sends", "n · steps · S at the server; steps · S at a worker"),
    (f"{SMALL}: updates at the server", "n · steps"),
)


class Cases(NamedTuple):
    """What is claimed of several runs: claims by the name of the run."""

    leads: dict[str, Claim]
    stalest: dict[str, Claim]
    replayed: dict[str, Claim]

    def add(self, run: str, trace: Trace, workers: int, staleness: int) -> None:
        """What the server's log says of the bound. Leads are worked out from the log, if no update was refused."""
        updates = trace.updates
        if all(update.applied for update in updates):
            self.leads[run] = Claim(*LEAD, staleness, most_ahead(updates), "1", PAPER, relation="<=")
        stale, derived = costs.most_stale(workers, staleness), f"derived from {PAPER}"
        self.stalest[run] = Claim(*STALEST, stale, trace.stalest, "1", derived, relation="<=")

    def replay(self, world: World, roles: Roles, run: str, trace: Trace) -> None:
        """That the server's log says all that happened: nothing was lost, and nothing applied twice.

        Bits are equal: a gradient is the same operations on the same numbers, and so is each update.
        """
        unlike = int((replayed(world, roles, trace.updates) != trace.parameters).sum())
        self.replayed[run] = Claim(*REPLAYED, 0, unlike, "1", "derived", "compared")

    def claims(self) -> list[Claim]:
        """One of each kind."""
        return [
            fold(LEAD[0], self.leads, key=True),
            fold(STALEST[0], self.stalest, key=True),
            fold(REPLAYED[0], self.replayed, key=True),
        ]


def most_ahead(updates: list[asynchronous.Update]) -> int:
    """The most steps by which a worker was ahead of the slowest that was still there, when it pulled.

    What a worker pulled has as many updates in it as had come by then, so the log tells what all had finished.
    """
    last = {update.worker: number for number, update in enumerate(updates)}
    most = 0
    for update in updates:
        before = [each.worker for each in updates[: update.version]]
        there = [before.count(worker) for worker, number in last.items() if number >= update.version]
        most = max(most, update.step - min(there))
    return most


def small_claims(world: World, roles: Roles, staleness: int, cases: Cases, steps: int = 8) -> list[Claim]:
    """Claims on the small form in real time, in which workers sleep by chance, and the last one long in its first step.

    Without the bound the others would make all their steps in that time. What the log says of the bound and of a replay
    is added to `cases`.
    """
    model = small_model(world, seed=world.rank)
    del model.counts  # the small form refuses buffers
    log: list[tuple[int, int, int]] = []
    with Ledger() as ledger:
        if roles.serves:
            server = small.AsynchronousServer(model, _optimizer(roles), staleness, roles.group)
            server.serve(steps)
            log = server.log
        else:
            worker, chance = small.AsynchronousWorker(model, roles.group), random.Random(world.rank)
            for step in range(steps):
                worker.pull()
                loss(world, model, world.rank, step).backward()
                time.sleep(0.25 if step == 0 and world.rank == roles.workers[-1] else 0.004 * chance.random())
                worker.push()
                model.zero_grad()
    log = next(each for each in gather_objects(log) if each)
    # Staleness: the updates between an update's pull and itself.
    updates = [asynchronous.Update(w, step, v, number - v, 0.0, True) for number, (w, step, v) in enumerate(log)]
    parameters = next(each for each in gather_objects(flat(model) if roles.serves else None) if each is not None)
    trace, workers = Trace(updates, parameters=parameters), len(roles.workers)
    cases.add(SMALL, trace, workers, staleness)
    cases.replay(world, roles, SMALL, trace)
    size = 4 * len(parameters)
    sent = size * steps * (workers if roles.serves else 1)
    return as_key(
        Claim(*SMALL_ROWS[0], sent, ledger.sent, "B", "derived"),
        Claim(*SMALL_ROWS[1], workers * steps, len(log), "1", "derived"),
    )


class SmallRule(Clocks):
    """The clocks with the small form's rule."""

    def may_begin(self, worker: int) -> bool:
        server = SimpleNamespace(clocks=self._finished, staleness=self.staleness)
        return small.AsynchronousServer.may_begin(server, worker)  # type: ignore[arg-type]


def order_claims(workers: int, staleness: int) -> list[Claim]:
    """Claims on the rule itself, in every order in which workers can begin and finish steps."""
    workers, staleness = min(workers, 3), min(staleness, 3)  # more have the same rule and too many orders
    run = f"every order of events, {workers} worker{'s' * (workers > 1)}, s = {staleness}"
    stale, leads, stalest = costs.most_stale(workers, staleness), {}, {}
    for form, rule in (("small form", SmallRule), ("full form", Clocks)):
        worst = every_order(workers, staleness, rule)
        most = staleness if workers > 1 else 0
        leads[form] = Claim("", "s; 0 for n = 1", most, worst.lead, "1", PAPER, "compared")
        derived = f"derived from {PAPER}"
        stalest[form] = Claim("", "(n−1)(2s+1)", stale, worst.staleness, "1", derived, "compared")
    return [
        fold(f"{run}: most steps ahead, both forms", leads),
        fold(f"{run}: stalest gradient, both forms", stalest),
    ]


def virtual_claims(
    world: World, roles: Roles, staleness: int, seconds: float, slow: int, cases: Cases
) -> tuple[list[Claim], dict[str, Trace]]:
    """Claims on runs with one slow worker on the virtual clock, and their traces by name."""
    times = [SLOW if worker == slow else FAST for worker in roles.workers]
    claims, traces = [], {}
    for bound in dict.fromkeys((0, staleness, None)):
        name = f"s = {'∞' if bound is None else bound}"
        plan = Plan(seconds=seconds, slow=slow)
        trace = traces[name] = of_the_server(train(world, roles, bound, plan))
        formula = "Σ ⌊T/tᵥ⌋" if bound is None else "Σ min(⌊T/tᵥ⌋, ⌊(T−tᵥ)/t⌋ + s + 1)"
        predicted = costs.steps_until(seconds, times, bound)
        measured = sum(update.time <= seconds for update in trace.updates)
        what = f"{name}: updates in {seconds:g} virtual seconds"
        claims.append(
            Claim(what, formula, predicted, measured, "1", "derived", "virtual clock", key=bound == staleness)
        )
        if bound is not None:
            cases.add(name, trace, len(times), bound)
    again = of_the_server(train(world, roles, staleness, Plan(seconds=seconds, slow=slow)))
    first = traces[f"s = {staleness}"]
    unlike = int((again.parameters != first.parameters).sum()) + (again.updates != first.updates)
    what = f"s = {staleness}, once more: parameters and updates that differ"
    claims.append(Claim(what, "the same run", 0, unlike, "1", "derived", "compared"))
    cases.replay(world, roles, f"s = {staleness}", first)
    return claims, traces


def chance_claims(world: World, roles: Roles, staleness: int, cases: Cases, steps: int = 8) -> list[Claim]:
    """Claims on a run in real time, in which each worker sleeps by chance, and once has a gradient that is NaN."""
    plan = Plan(steps=steps, pause=0.004, poisoned=2)
    trace = of_the_server(train(world, roles, staleness, plan))
    run, workers = "random delays", len(roles.workers)
    refused = sum(not update.applied for update in trace.updates)
    cases.add(run, trace, workers, staleness)
    cases.replay(world, roles, run, trace)
    pushes = workers * steps
    sent, received = costs.bytes_served(pushes, pushes, 4 * len(trace.parameters), 4 * COUNTS, workers)
    return [
        Claim(f"{run}: bytes that the server sends", "n · steps · S + n · other", sent, trace.sent, "B", "derived"),
        Claim(f"{run}: bytes that it receives", "n · steps · S", received, trace.received, "B", "derived"),
        Claim(f"{run}: gradients with a NaN that were refused", "n", workers, refused, "1", "derived"),
    ]


def death_claims(world: World, trace: Trace, roles: Roles, dies: int, steps: int) -> list[Claim]:
    """Claims on a run in which a worker died in its fourth step."""
    others = (len(roles.workers) - 1) * steps
    mine = sum(update.worker == dies for update in trace.updates)
    twice = len(trace.updates) - len({(update.worker, update.step) for update in trace.updates})
    said = trace.died[0] if len(trace.died) == 1 else -1
    run, cases = f"rank {dies} dies", Cases({}, {}, {})
    cases.replay(world, roles, run, trace)
    return [
        Claim(f"{run}: the rank that the server lost", "as given", dies, said, "1", "derived"),
        Claim(f"{run}: its updates, of three steps and a half", "3", 3, mine, "1", "derived"),
        Claim(f"{run}: updates of the others", "(n−1) · steps", others, len(trace.updates) - mine, "1", "derived"),
        Claim(f"{run}: updates applied twice", "0", 0, twice, "1", "derived"),
        fold(f"{run}: {REPLAYED[0].removesuffix(', in each run')}", cases.replayed),
    ]


def with_a_death(world: World, roles: Roles, staleness: int, dies: int, steps: int = 8) -> list[Claim]:
    """A run in which a rank dies; claims on what the others made of it."""
    trace = train(world, roles, staleness, Plan(steps=steps, pause=0.004, dies=dies))
    go_on_without([dies])
    if roles.serves:
        print(f"{named(trace.died, world.size)} died; the server went on with the other workers\n")
    return death_claims(world, of_the_server(trace), roles, dies, steps)


def check_options(world: World, roles: Roles, staleness: int, slow: int, seconds: int, dies: int | None) -> None:
    """Refuse invalid options, before anything is sent.

    Raises:
        ValueError: On every rank alike.
    """
    if staleness < 0:
        raise ValueError(f"staleness={staleness} must be 0 (all wait for all) or more")
    if seconds < SLOW:
        raise ValueError(f"seconds={seconds} is less than a step of the slow worker; use {SLOW:g} or more")
    if slow not in roles.workers:
        raise ValueError(f"slow_rank={slow} is no worker; use one of {list(roles.workers)}")
    if dies is not None and not 0 <= dies < world.size:
        raise ValueError(f"dies={dies} is no rank; use one of 0 to {world.size - 1}")
    if dies is not None and under_torchrun():
        raise ValueError(f"dies={dies}: torchrun ends all ranks when one ends; start this with python -m")


def picture(traces: dict[str, Trace], seconds: float) -> Figure:
    """Loss against virtual time, and how stale gradients were, for each bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    looks = [("#0072B2", "-", ""), ("#D55E00", "--", "///"), ("#009E73", ":", "||")]
    most = max(trace.stalest for trace in traces.values())
    for place, ((name, trace), (colour, line, hatch)) in enumerate(zip(traces.items(), looks, strict=False)):
        points = [(moment, value) for moment, value in trace.losses if moment <= seconds]
        left.step(*zip(*points, strict=True), where="post", label=name, color=colour, linestyle=line)
        found = [update.staleness for update in trace.updates]
        shares = [found.count(value) / len(found) for value in range(most + 1)]
        middles = [value + 0.27 * (place - (len(traces) - 1) / 2) for value in range(most + 1)]
        right.bar(middles, shares, 0.27, label=name, color=colour, hatch=hatch, edgecolor="white")
    left.set(xlabel="virtual seconds", ylabel="loss", yscale="log", title="One slow worker: loss against time")
    right.set(xlabel="updates between pull and push", ylabel="share of gradients", title="Staleness")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def demo(
    world: World,
    staleness: int = 2,
    slow_rank: int | None = None,
    seconds: int = 32,
    dies: int | None = None,
) -> list[Claim]:
    """Trains with a slow worker and a bound of 0, s or none; the table shows steps gained, and how stale gradients are.

    Args:
        staleness: s: steps that a worker may be ahead of the slowest when it begins one.
        slow_rank: The worker whose steps take four times as long; the last if not given.
        seconds: Virtual seconds of each run.
        dies: A rank that ends itself in the middle of a last run: a worker, and the others go on; or the server (0).
    """
    if world.size < 2:
        what = "updates in a given time, with one slow worker and a bound of s"
        rows = (*SMALL_ROWS, (what, "Σ min(⌊T/tᵥ⌋, ⌊(T−tᵥ)/t⌋ + s + 1)"), LEAD, STALEST, REPLAYED)
        return [Claim.needs_ranks(2, *row, PAPER, key=True) for row in rows]
    roles = on_gloo(split_roles(1))
    slow = roles.workers[-1] if slow_rank is None else slow_rank
    check_options(world, roles, staleness, slow, seconds, dies)
    cases = Cases({}, {}, {})
    claims = small_claims(world, roles, staleness, cases)
    virtual, traces = virtual_claims(world, roles, staleness, seconds, slow, cases)
    chance = chance_claims(world, roles, staleness, cases)
    claims += [*virtual, *cases.claims(), *order_claims(len(roles.workers), staleness), *chance]
    claims += lesson_delay.delay_claims(world, roles)
    for name, trace in traces.items():
        reached = [loss for moment, loss in trace.losses if moment <= seconds]
        world.cost(f"{name}: loss after {seconds} virtual seconds", reached[-1], "")
    world.figure(lambda: picture(traces, seconds))
    if dies is not None:
        claims += with_a_death(world, roles, staleness, dies)
    return claims


SURVIVES = True  # the demo goes on without a rank that dies
