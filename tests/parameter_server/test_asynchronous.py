"""The asynchronous server: its bound under random delays, one device by its log, exact repetition, odd modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.costs.staleness import bytes_served, most_stale
from minitrain.lessons.parameter_server.runs import Plan, train, versions_of
from minitrain.parameter_server.full.asynchronous import AsynchronousServer, AsynchronousWorker
from minitrain.parameter_server.full.roles import split_roles


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


def refuse(world):
    """Before anything is sent; what else a server and a worker refuse is in test_synchronous.py."""
    for servers, bound, words in (
        (1, -1, "staleness=-1 must be 0"),
        (2, 0, r"servers=\(0, 1\).* use split_roles\(1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            roles, module = split_roles(servers), nn.Linear(2, 1)
            AsynchronousServer(module, adamw, roles, bound) if roles.serves else AsynchronousWorker(module, roles)


def test_what_cannot_be_is_refused_on_every_rank(ranks):
    ranks(3).run(refuse)
