"""The asynchronous server: its bound under random delays, one device by its log, exact repetition, odd modules."""

from __future__ import annotations

import copy
import random
import re
import time

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.costs.staleness import bytes_served, most_stale
from minitrain.lessons.parameter_server.runs import Plan, train, versions_of
from minitrain.parameter_server import asynchronous as small
from minitrain.parameter_server.full.asynchronous import AsynchronousServer, AsynchronousWorker
from minitrain.parameter_server.full.roles import Roles, split_roles


def delayed(world, bound, seed):
    roles = split_roles(1)
    trace = train(world, roles, bound, Plan(steps=6, pause=0.003, poisoned=seed))
    if not roles.serves:
        return None
    assert torch.equal(versions_of(world, roles, trace.updates)[-1], trace.parameters)
    assert trace.parameters.isfinite().all()
    return trace


@pytest.mark.parametrize("bound", (0, 1, None))
@pytest.mark.parametrize("size", (3, 4))
def test_random_delays(ranks, size, bound):
    for seed in range(3):
        trace = ranks(size).run(delayed, bound, seed)[0]
        workers = size - 1
        made = [(update.worker, update.step) for update in trace.updates]
        assert sorted(made) == [(worker, step) for worker in range(1, size) for step in range(6)]
        assert bound is None or max(trace.leads) <= bound
        assert trace.stalest <= most_stale(workers, bound)
        refused = [update.step for update in trace.updates if not update.applied]
        assert refused == [seed] * workers


def small_run(world, bound, seed):
    """The small form while workers sleep by chance; the weights of one device that replays the server's log."""

    def compute(model, worker, step):
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + worker), dtype=torch.float64)
        return model(inputs).square().mean()

    def made(number):
        torch.manual_seed(number)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    module, steps = made(world.rank), 5
    if world.rank:
        worker, chance = small.AsynchronousWorker(module), random.Random(f"{seed} {world.rank}")
        for step in range(steps):
            worker.pull()
            compute(module, world.rank, step).backward()
            time.sleep(0.004 * chance.random())
            worker.push()
            module.zero_grad()
        return None
    norms, expected = [], []
    server = small.AsynchronousServer(module, adamw, bound)
    server.optimizer.register_step_pre_hook(lambda *_: norms.append(norm(module)))
    server.serve(steps)
    reference, copied = made(0), made(0)
    optimizer, versions = adamw(reference.parameters()), [copy.deepcopy(reference.state_dict())]
    for worker, step, version in server.log:
        copied.load_state_dict(versions[version])
        copied.zero_grad()
        compute(copied, worker, step).backward()
        for parameter, other in zip(reference.parameters(), copied.parameters(), strict=True):
            parameter.grad = other.grad.clone()
        expected.append(norm(reference))
        optimizer.step()
        versions.append(copy.deepcopy(reference.state_dict()))
    assert all(map(torch.equal, module.parameters(), reference.parameters()))
    assert all(map(torch.equal, norms, expected)) and len(norms) == len(server.log)
    return server.log


def norm(module):
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm()


@pytest.mark.parametrize("bound", (0, 1, None))
@pytest.mark.parametrize("size", (2, 3, 4))
def test_the_small_form_is_one_device_by_its_log(ranks, size, bound):
    for seed in range(2):
        log = ranks(size).run(small_run, bound, seed)[0]
        assert sorted(push[:2] for push in log) == [(worker, step) for worker in range(1, size) for step in range(5)]
        stalest = max(number - version for number, (_, _, version) in enumerate(log))
        assert stalest <= most_stale(size - 1, bound)
        if bound is not None:
            for number, (_, step, version) in enumerate(log):
                pushed = [earlier[0] for earlier in log[:version]]  # when its parameters were pulled
                assert step - min(pushed.count(worker) for worker in range(1, size)) <= bound, number


class Odd(nn.Module):
    """Tied, frozen, turned, half, never used, used now and then, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.turned = nn.Parameter(torch.randn(2, 3).t())
        self.low = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.unused, self.seldom = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(3))
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x, step):
        x = self.second(torch.tanh(self.first(x * self.scale + self.frozen)))
        x = x + self.seldom if step % 2 else x
        return ((x + self.low.float()) @ self.turned).square().mean()


def odd_inputs(step):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def odd(world, steps):
    torch.manual_seed(world.rank)
    module, roles = Odd(), split_roles(1)
    if roles.serves:
        reference = copy.deepcopy(module)
        server = AsynchronousServer(module, adamw, roles, 0)
        with Ledger() as ledger:
            server.serve(ledger)
        optimizer = adamw([parameter for parameter in reference.parameters() if parameter.requires_grad])
        for step in range(steps):
            optimizer.zero_grad()
            reference(odd_inputs(step), step).backward()
            optimizer.step()
        return module.state_dict(), reference.state_dict(), ledger.sent, ledger.received
    worker = AsynchronousWorker(module, roles)
    for step in range(steps):
        worker.pull()
        module(odd_inputs(step), step).backward()
        worker.push()
        assert all(parameter.grad is None for parameter in module.parameters())
    worker.pull()
    assert worker.leave() == ()
    return module.state_dict()


def test_one_worker_is_one_device(ranks):
    """An odd module, its weights and AdamW's, bit by bit; and bytes, of which the frozen and buffers travel once."""
    (served, reference, sent, received), pulled = ranks(2).run(odd, 5)
    for name, value in reference.items():
        assert torch.equal(served[name], value) and torch.equal(pulled[name], value), name
    trained = 4 * (9 + 3 + 3 + 6 + 4 + 3) + 2 * 3
    predicted = bytes_served(6, 5, trained, 4 * (3 + 3), 1)
    missing = 5 * 4 * 4 + 3 * 4 * 3  # one is never used, one in two of five steps
    assert (sent, received) == (predicted[0], predicted[1] - missing)


def refuse(world, fault):
    roles = split_roles(2 if fault == "two servers" else 1)
    if fault == "roles" and world.rank == 1:
        roles = Roles((1,), (0, 2))
    module = nn.Linear(3 if fault == "modules" and world.rank == 2 else 2, 1)
    bound = -1 if fault == "bound" else 0
    try:
        if roles.serves or fault == "two servers":
            AsynchronousServer(module, adamw, roles, bound)
        else:
            AsynchronousWorker(module, roles)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("bound", "staleness=-1 must be 0"),
        ("two servers", r"roles.servers=\(0, 1\).* use split_roles\(1\)"),
        ("modules", "parameter weight"),
        ("roles", "roles differ between ranks"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(ranks, fault, says):
    for said in ranks(3).run(refuse, fault):
        assert re.search(says, said)
