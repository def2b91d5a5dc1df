"""Runs of a small model with an asynchronous server, on the virtual clock and in real time, and their replay."""

from __future__ import annotations

import os
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects, go_on_without
from minitrain.lessons.rows import Claim, Rows
from minitrain.parameter_server.full import asynchronous
from minitrain.parameter_server.full.roles import Roles

FAST, SLOW = 1.0, 4.0  # virtual seconds of a step; whole numbers, so that no sum of times rounds
RATE, WIDTH = 0.1, 8  # the learning rate, over the number of workers; features


@dataclass
class Trace:
    """The server's record of a run."""

    updates: list[asynchronous.Update] = field(default_factory=list)  # every gradient that arrived
    leads: list[int] = field(default_factory=list)  # for each pull, the steps its worker was ahead of the slowest
    died: list[int] = field(default_factory=list)  # workers that died
    losses: list[tuple[float, float]] = field(default_factory=list)  # virtual time and loss, at first and per update
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))  # at the end, one after the other
    pulled: dict[int, list[Tensor]] = field(default_factory=dict)  # what each worker began its steps with

    @property
    def stalest(self) -> int:
        """The largest staleness of a gradient."""
        return max(update.staleness for update in self.updates)


class Plan(NamedTuple):
    """A worker's behavior in a run."""

    steps: int = 1000  # at most
    seconds: float = 0.0  # it begins no step after so many virtual seconds; 0 where there is no virtual clock
    slow: int = -1  # the worker whose steps take longer
    pause: float = 0.0  # the longest real sleep in a step; the slow one sleeps twelve times as long
    poisoned: int = -1  # the step whose gradient is made NaN
    dies: int = -1  # the rank that ends itself: a worker in its fourth step, or the server after four updates


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


def optimizer_of(roles: Roles) -> partial[torch.optim.SGD]:
    """SGD; when all workers have pushed once, their mean has been applied."""
    return partial(torch.optim.SGD, lr=RATE / len(roles.workers))


def train(world: World, roles: Roles, staleness: int | None, plan: Plan) -> Trace:
    """Train the small model with the full form; returns what the server saw; on a worker, what it pulled."""
    model = small_model(world, seed=world.rank)  # the server's is what all begin with
    with VirtualClock() if plan.seconds else nullcontext() as clock:
        if not roles.serves:
            worker = asynchronous.AsynchronousWorker(model, roles)
            pulled = work(world, model, worker, plan, clock)
            worker.leave()
            return Trace(pulled={world.rank: pulled})
        server = asynchronous.AsynchronousServer(model, optimizer_of(roles), roles, staleness)
        losses: list[tuple[float, float]] = []

        def look(moment: float) -> None:
            with torch.no_grad():
                losses.append((moment, loss(world, model, -1, 0, 256).item()))
            if world.rank == plan.dies and len(losses) > 4:
                os._exit(13)

        look(0.0)
        server.serve(after=lambda update: look(update.time))
    return Trace(server.updates, server.leads, server.died, losses, flat(model))


def work(world: World, model: nn.Module, worker: Any, plan: Plan, clock: VirtualClock | None = None) -> list[Tensor]:
    """A worker's steps, in either form; returns the parameters that it began each with."""
    chance, slow, pulled = random.Random(world.rank), world.rank == plan.slow, list[Tensor]()
    for step in range(plan.steps):
        if clock is not None and clock.now >= plan.seconds:
            break
        worker.pull()
        pulled.append(flat(model))
        loss(world, model, world.rank, step).backward()
        if clock is not None:
            clock.work(SLOW if slow else FAST, f"{step}", "forward")
        time.sleep(plan.pause * (12 if slow else chance.random()))
        if step == plan.poisoned:
            next(model.parameters()).grad[0] = torch.nan  # type: ignore[index]
        if step == 3 and world.rank == plan.dies:
            os._exit(13)  # as if the machine had failed: without a word
        worker.push()
        model.zero_grad()
    return pulled


def of_the_server(trace: Trace) -> Trace:
    """The server's trace, on every rank, with what the workers pulled."""
    traces = gather_objects(trace)
    found = next(each for each in traces if each.updates)
    return replace(found, pulled={worker: pulled for each in traces for worker, pulled in each.pulled.items()})


def as_pulled(trace: Trace, versions: list[Tensor]) -> list[asynchronous.Update]:
    """The updates with the version that the worker really pulled, which has the same bits, and not the logged one."""
    numbers = {version.numpy().tobytes(): number for number, version in enumerate(versions)}
    found = []
    for number, update in enumerate(trace.updates):
        bits = trace.pulled[update.worker][update.step].numpy().tobytes()
        version = numbers.get(bits, -(10**6))  # bits of no version are as stale as can be
        found.append(replace(update, version=version, staleness=number - version))
    return found


def versions_of(world: World, roles: Roles, updates: list[asynchronous.Update]) -> list[Tensor]:
    """The parameters that one device has at first, and after each update of a server's log.

    It computes each gradient from the parameters that its worker had pulled, and applies it in the server's order.
    """
    model, copy = small_model(world), small_model(world)
    optimizer = optimizer_of(roles)(list(model.parameters()))
    versions = [flat(model)]
    for update in filter(lambda each: each.applied, updates):
        vector_to_parameters(versions[update.version].to(world.device), copy.parameters())
        copy.zero_grad()
        loss(world, copy, update.worker, update.step).backward()
        for parameter, other in zip(model.parameters(), copy.parameters(), strict=True):
            parameter.grad = other.grad
        optimizer.step()
        versions.append(flat(model))
    return versions


def with_a_death(world: World, roles: Roles, staleness: int, dies: int, steps: int = 8) -> list[Claim]:
    """A run in which a worker ends itself in its fourth step; claims on what the others made of it."""
    trace = train(world, roles, staleness, Plan(steps=steps, pause=0.004, dies=dies))
    go_on_without([dies])
    if roles.serves:
        print(f"rank {trace.died[0]} died; the server went on with the other workers\n")
    trace, rows, run = of_the_server(trace), Rows("derived"), f"rank {dies} dies: "
    mine = sum(update.worker == dies for update in trace.updates)
    others, all_others = len(trace.updates) - mine, (len(roles.workers) - 1) * steps
    twice = len(trace.updates) - len({(update.worker, update.step) for update in trace.updates})
    rows.add(f"{run}its updates, of three steps and a half", "3", 3, mine, "1")
    rows.add(f"{run}updates of the others", "(n−1) · steps", all_others, others, "1")
    rows.add(f"{run}updates applied twice", "0", 0, twice, "1")
    what = f"{run}parameters that differ from the log's, replayed on one device"
    rows.equal(what, versions_of(world, roles, trace.updates)[-1], trace.parameters)
    return rows.claims()
