"""Runs of a small model with an asynchronous server, in real time or by a timetable, and their replay on one device.

Real time gives another order of pushes in each run. A timetable says in advance when each step begins and ends on a
virtual clock, by the server's own rule; the server then takes pushes in that order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Group
from minitrain.parameter_server.asynchronous import AsynchronousServer, AsynchronousWorker

RATE, WIDTH = 0.1, 8  # the learning rate, over the number of workers; features


class Update(NamedTuple):
    """A gradient that the server took in."""

    worker: int
    step: int  # the worker's pushes before this one
    version: int  # number of updates in the parameters that it was computed from
    staleness: int  # updates applied since those parameters were pulled
    time: float = 0.0  # virtual time, 0 without a timetable


@dataclass
class Trace:
    """The server's record of a run."""

    updates: list[Update] = field(default_factory=list)  # every gradient, in the order of application
    losses: list[tuple[float, float]] = field(default_factory=list)  # virtual time and loss, at first and per update
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))  # at the end, one after the other
    pulled: dict[int, list[Tensor]] = field(default_factory=dict)  # what each worker began its steps with


class Event(NamedTuple):
    """A worker's step begins, with a pull, or ends, with a push."""

    time: float
    worker: int
    begins: bool


def timetable(times: Mapping[int, float], staleness: int | None, seconds: float) -> list[Event]:
    """All begins and ends of steps before `seconds`, and the ends after it, if workers take `times` for each step."""
    assert staleness is None or staleness >= 0, f"{staleness=}: with a lead below 0, no worker may ever begin"
    state = SimpleNamespace(clocks=dict.fromkeys(times, 0), staleness=staleness)
    now, idle, ends, events = 0.0, set(times), dict[int, float](), list[Event]()
    while now < seconds or ends:
        for worker in sorted(idle) if now < seconds else ():
            # The small form's rule decides, as it does among ranks.
            if AsynchronousServer.may_begin(state, worker):  # type: ignore[arg-type]
                idle.remove(worker)
                ends[worker] = now + times[worker]
                events.append(Event(now, worker, True))
        now = min(ends.values())
        # All that end at this moment push before one of them pulls.
        for worker in sorted(worker for worker, end in ends.items() if end == now):
            del ends[worker]
            idle.add(worker)
            state.clocks[worker] += 1
            events.append(Event(now, worker, False))
    return events


def play(
    server: AsynchronousServer, events: Sequence[Event], after: Callable[[float], None] = lambda moment: None
) -> list[Update]:
    """Serve in a timetable's order, calling `after` each update; `work` is the workers' side."""
    for moment, worker, begins in events:
        if begins:
            server.answer(worker)
        else:
            # The push is waited for, and those that arrived before it wait.
            server.apply(worker, server.take(worker))
            after(moment)
    return updates_of(server, [event.time for event in events if not event.begins])


def updates_of(server: AsynchronousServer, moments: Sequence[float]) -> list[Update]:
    """The server's log, with the updates between each update's pull and itself, and its moment."""
    numbered = enumerate(zip(server.log, moments, strict=True))
    return [Update(w, step, v, number - v, moment) for number, ((w, step, v), moment) in numbered]


def small_model(world: World, seed: int = 0) -> nn.Module:
    """Two layers, deterministic on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)).to(world.device)


def loss(world: World, model: nn.Module, worker: int, step: int, samples: int = 32) -> Tensor:
    """Mean squared error on the batch of a worker's step; the targets are a weighted sum of the inputs."""
    x = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(1000 * step + worker + 1))
    y = (x @ torch.linspace(-1, 1, WIDTH))[:, None]
    return (model(x.to(world.device)) - y.to(world.device)).square().mean()


def flat(model: nn.Module) -> Tensor:
    """All parameters, one after the other, on the CPU."""
    return parameters_to_vector(model.parameters()).detach().cpu()


def sgd(workers: int) -> Callable[[Any], torch.optim.Optimizer]:
    """SGD; when all workers have pushed once, their mean has been applied."""
    return lambda parameters: torch.optim.SGD(parameters, lr=RATE / workers)


def train(world: World, events: Sequence[Event], staleness: int | None, group: Group = None) -> Trace:
    """Train the small model by a timetable; returns the server's trace, on every rank."""
    model = small_model(world, seed=world.rank)  # the server's is what all begin with
    if world.rank:
        steps = sum(event == (event.time, world.rank, True) for event in events)
        return of_the_server(Trace(pulled={world.rank: work(world, AsynchronousWorker(model, group), steps)}))
    losses: list[tuple[float, float]] = []

    def look(moment: float) -> None:
        with torch.no_grad():
            losses.append((moment, loss(world, model, -1, 0, 256).item()))

    look(0.0)
    updates = play(AsynchronousServer(model, sgd(world.size - 1), staleness, group), events, look)
    return of_the_server(Trace(updates, losses, flat(model)))


def in_real_time(world: World, staleness: int, steps: int, group: Group = None) -> Trace:
    """Train the small model in the order in which pushes arrive; returns the server's trace, on every rank.

    Workers sleep by chance, and the last one long: without a bound the others would be far ahead of it.
    """
    model = small_model(world, seed=world.rank)
    if world.rank:
        pause = 0.004 * (12 if world.rank == world.size - 1 else 1)
        pulled = work(world, AsynchronousWorker(model, group), steps, pause)
        return of_the_server(Trace(pulled={world.rank: pulled}))
    server = AsynchronousServer(model, sgd(world.size - 1), staleness, group)
    server.serve(steps)
    return of_the_server(Trace(updates_of(server, [0.0] * len(server.log)), parameters=flat(model)))


def work(world: World, worker: AsynchronousWorker, steps: int, pause: float = 0.0) -> list[Tensor]:
    """A worker's steps, with a sleep of at most `pause` in each; returns the parameters that it began each with."""
    chance, pulled = random.Random(world.rank), list[Tensor]()
    for step in range(steps):
        worker.pull()
        pulled.append(flat(worker.module))
        loss(world, worker.module, world.rank, step).backward()
        time.sleep(pause * chance.random())
        worker.push()
        worker.module.zero_grad()
    return pulled


def of_the_server(trace: Trace) -> Trace:
    """The server's trace, on every rank, with what the workers pulled."""
    traces = gather_objects(trace)
    return replace(traces[0], pulled={worker: pulled for each in traces for worker, pulled in each.pulled.items()})


def as_pulled(trace: Trace, versions: list[Tensor]) -> list[Update]:
    """The updates with the version that the worker really pulled, which has the same bits, and not the logged one."""
    numbers = {version.numpy().tobytes(): number for number, version in enumerate(versions)}
    found = []
    for number, update in enumerate(trace.updates):
        bits = trace.pulled[update.worker][update.step].numpy().tobytes()
        version = numbers.get(bits, -(10**6))  # bits of no version are as stale as can be
        found.append(update._replace(version=version, staleness=number - version))
    return found


def versions_of(world: World, updates: list[Update]) -> list[Tensor]:
    """The parameters that one device has at first, and after each update of a server's log.

    It computes each gradient from the parameters that its worker had pulled, and applies it in the server's order.
    """
    model, copy = small_model(world), small_model(world)
    optimizer = sgd(world.size - 1)(model.parameters())
    versions = [flat(model)]
    for update in updates:
        vector_to_parameters(versions[update.version].to(world.device), copy.parameters())
        copy.zero_grad()
        loss(world, copy, update.worker, update.step).backward()
        for parameter, other in zip(model.parameters(), copy.parameters(), strict=True):
            parameter.grad = other.grad
        optimizer.step()
        versions.append(flat(model))
    return versions


def descend(world: World, rate: float, rounds: int) -> tuple[list[float], list[int]]:
    """Workers of equal speed bring down x²/2 without a bound: x at the start and after each update, and staleness.

    They come in turns: each pushes, pulls again, and then the next one does. So each gradient misses one update of
    every other worker, τ = n − 1 of them, but for the first round.
    """
    point, workers = nn.ParameterList([torch.ones((), dtype=torch.float64)]).to(world.device), range(1, world.size)
    if world.rank:
        worker = AsynchronousWorker(point)
        for _ in range(rounds):
            worker.pull()
            (point[0].square() / 2).backward()
            worker.push()
            point.zero_grad()
        return gather_objects(([0.0], [0]))[0]
    turns = [Event(0.0, worker, begins) for _ in range(rounds - 1) for worker in workers for begins in (False, True)]
    first, last = [Event(0.0, worker, True) for worker in workers], [Event(0.0, worker, False) for worker in workers]
    server = AsynchronousServer(point, lambda parameters: torch.optim.SGD(parameters, lr=rate), None)
    found = [1.0]
    updates = play(server, [*first, *turns, *last], lambda moment: found.append(point[0].item()))
    return gather_objects((found, [update.staleness for update in updates]))[0]
