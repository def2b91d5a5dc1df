"""Deaths: of a worker in whatever it does, after which the server goes on; of the server, which the workers notice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from minitrain.comm import VirtualClock, send
from minitrain.parameter_server.full.asynchronous import AsynchronousServer, AsynchronousWorker
from minitrain.parameter_server.full.inbox import PUSH, announce
from minitrain.parameter_server.full.roles import split_roles
from minitrain.ranks import Ranks

STEPS = 4


@pytest.fixture(scope="module")
def mortal() -> Iterator[Ranks]:
    """Three ranks that may die one by one; fresh ones start with the next call."""
    with Ranks(3, device="cpu", survives=True) as started:
        yield started


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def die_computing(worker, module):
    os._exit(9)


def die_pushing(worker, module):
    """The announcement has left, and the first of two gradients."""
    announce(PUSH, [True, True], 0, None)
    send(module.weight.grad, 0).wait()
    os._exit(9)


def die_held(worker, module):
    """With s = 0, the other worker being slow: the pull is not answered."""
    worker.push()
    threading.Timer(0.2, os._exit, [9]).start()
    worker.pull()


def with_a_death(world, die, bound, virtual=False):
    """Rank 2 dies in its third step. Each gradient is all ones, so the weights say how many were applied."""
    roles = split_roles(1)
    module = nn.Linear(2, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    if virtual:
        VirtualClock().__enter__()
    if roles.serves:
        server = AsynchronousServer(module, sgd, roles, bound)
        server.serve()
        return server.died, [(update.worker, update.step) for update in server.updates], module.weight[0].tolist()
    worker = AsynchronousWorker(module, roles)
    for step in range(STEPS):
        worker.pull()
        module(torch.ones(1, 2)).sum().backward()
        if world.rank == 2 and step == 2:
            die(worker, module)
        if die is die_held and world.rank == 1 and step == 2:
            time.sleep(0.5)
        worker.push()
    return worker.leave()


@pytest.mark.parametrize(
    ("die", "bound", "virtual", "pushed"),
    [
        (die_computing, 1, False, 2),
        (die_computing, 1, True, 2),
        (die_computing, None, False, 2),
        (die_pushing, 0, False, 2),
        (die_held, 0, False, 3),
    ],
)
def test_the_server_goes_on_without_a_worker(mortal, die, bound, virtual, pushed):
    (died, updates, weights), told, dead = mortal.run(with_a_death, die, bound, virtual)
    assert died == [2] and told == (2,) and dead is None
    assert sorted(updates) == [(1, step) for step in range(STEPS)] + [(2, step) for step in range(pushed)]
    assert weights == [-float(STEPS + pushed)] * 2


def without_a_server(world, bound):
    roles = split_roles(1)
    module = nn.Linear(2, 1)
    if roles.serves:
        AsynchronousServer(module, sgd, roles, bound).serve(after=lambda _: os._exit(9))
    worker = AsynchronousWorker(module, roles)
    with pytest.raises(ConnectionError) as caught:
        while True:
            worker.pull()
            module(torch.ones(1, 2)).sum().backward()
            time.sleep(0.1 * world.rank)
            worker.push()
    return str(caught.value)


@pytest.mark.parametrize("bound", (0, None))
def test_workers_notice_that_the_server_died(mortal, bound):
    dead, *said = mortal.run(without_a_server, bound)
    assert dead is None
    assert all(text.startswith("the parameter server, rank 0, is gone, and with it the parameters") for text in said)
