"""Servers and workers equal one device that adds up the workers' batches in their order, to the last bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from minitrain.comm import Ledger
from minitrain.lessons.parameter_server import synchronous as lesson
from minitrain.parameter_server import Roles, Server, Worker, split_roles
from tests.data_parallel.models import Branches, gpt, tokens

OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "Adafactor": partial(torch.optim.Adafactor, lr=0.01),  # looks at rows and columns: tensors must be whole
}


def serve(module, optimizer, roles, compute, steps):
    """Train on all ranks: `compute(module, worker, step)` makes the loss, worker counted from 0; who refused."""
    if roles.serves:
        server = Server(module, optimizer, roles)
        server.serve(steps)
        server.answer()
        return server.refused, {name for parcel in server.parcels for name in parcel.parameters}
    worker = Worker(module, roles)
    place = roles.workers.index(dist.get_rank(roles.group))
    for step in range(steps):
        worker.pull()
        loss = compute(module, place, step)
        if loss is not None:
            loss.backward()
        worker.push()
        module.zero_grad()
    worker.pull()
    return worker.refused, set(dict(module.named_parameters()))


def alone(module, optimizer, workers, compute, steps, refused=lambda worker, step: False):
    """The same on one device."""
    updates = optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    for step in range(steps):
        taken = [worker for worker in range(workers) if not refused(worker, step)]
        for worker in taken:
            loss = compute(module, worker, step)
            if loss is not None:
                loss.backward()
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(len(taken))
        updates.step()
        updates.zero_grad()


def same(module, reference, names):
    expected = dict(reference.named_parameters())
    for name in names:
        found = dict(module.named_parameters())[name]
        assert torch.equal(found, expected[name]), f"{name}: {found} instead of {expected[name]}"


def on_tokens(module, worker, step):
    return module(*(batch[2 * worker : 2 * worker + 2] for batch in tokens(8, step)))[1]


def train(world, servers, optimizer, choices):
    module, reference = gpt(seed=world.rank, **choices), gpt(seed=0, **choices)
    roles = split_roles(servers)
    _, names = serve(module, OPTIMIZERS[optimizer], roles, on_tokens, 3)
    alone(reference, OPTIMIZERS[optimizer], len(roles.workers), on_tokens, 3)
    same(module, reference, names)
    return sorted(names) if roles.serves else None


@pytest.mark.parametrize("size, servers", ((2, 1), (3, 2), (4, 2), (4, 3)))
def test_equals_one_device_with_more_servers(ranks, size, servers):
    shares = [names for names in ranks(size).run(train, servers, "AdamW", {"tied": False}) if names is not None]
    everything = sorted(name for share in shares for name in share)
    assert everything == sorted(dict(gpt(seed=0, tied=False).named_parameters()))  # each once, on one server
    assert all(shares)


# Which branches worker r uses in step s; None: it does not even call backward.
UNUSED = {
    "on some workers": lambda worker, step: ["first"] if worker == 0 else ["second"],
    "on the last": lambda worker, step: ["first", "second"][: 1 + (worker != 1)],
    "everywhere": lambda worker, step: ["first"],
    "in one step": lambda worker, step: [["first"], ["second"], ["first", "second"]][step],
    "no batch at all": lambda worker, step: None if worker == 1 else ["first"],
}


def branches(world, case, servers):
    torch.manual_seed(0)
    reference = Branches().double()
    module = copy.deepcopy(reference)
    inputs = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def compute(module, worker, step):
        used = UNUSED[case](worker, step)
        return None if used is None else module(inputs[worker] + step, used)

    roles = split_roles(servers)
    _, names = serve(module, OPTIMIZERS["SGD"], roles, compute, 3)
    alone(reference, OPTIMIZERS["SGD"], len(roles.workers), compute, 3)
    same(module, reference, names)


@pytest.mark.parametrize("case", UNUSED)
def test_unused_parameters(ranks, case):
    ranks(3).run(branches, case, 1)
    ranks(4).run(branches, case, 2)


def spoiled(world, bad, who):
    """Some workers have a NaN or an infinity in their second step; only the first server sees it in its share."""

    def refused(worker, step):
        return step == 1 and worker in who

    def compute(module, worker, step):
        loss = on_tokens(module, worker, step)
        return loss + bad * next(module.parameters()).sum() if refused(worker, step) else loss

    module, reference = gpt(seed=0), gpt(seed=0)
    roles = split_roles(2)
    counted, names = serve(module, OPTIMIZERS["AdamW"], roles, compute, 3)
    alone(reference, OPTIMIZERS["AdamW"], 2, compute, 3, refused)
    same(module, reference, names)
    return counted


@pytest.mark.parametrize("bad", (float("nan"), float("inf")))
def test_gradients_that_are_not_finite_are_refused_and_counted(ranks, bad):
    assert ranks(4).run(spoiled, bad, [1]) == [{2: 0, 3: 1}, {2: 0, 3: 1}, 0, 1]


def make(module, roles, serves):
    return Server(module, OPTIMIZERS["SGD"], roles) if serves else Worker(module, roles)


def refused_roles(world):
    """Every rank raises the same, and nothing is sent."""
    good, rank = split_roles(1), world.rank
    cases = [
        (nn.Linear(2, 2), good, True, "rank 1 made a Server, but roles.servers=(0,); make a Worker there"),
        (nn.Linear(2, 2), replace(good, workers=()), good.serves, "roles.workers=()"),
        (nn.Linear(2, 2), replace(good, workers=(1,)), good.serves, "each of the group's 3 ranks once"),
        (nn.Linear(2, 2), Roles((0,), (0, 1, 2)), good.serves, "each of the group's 3 ranks once"),
        (nn.Linear(2, 2), split_roles(1 + (rank == 2)), rank < 1, "roles.servers differs between ranks: (0,) on rank"),
        (nn.Linear(2, 2 + (rank == 2)), good, good.serves, "parameter weight differs between ranks"),
        (nn.Linear(2, 2, bias=rank != 0), good, good.serves, "parameter bias differs between ranks: missing on rank 0"),
        (nn.Embedding(3, 2, sparse=True), good, good.serves, "asks for sparse gradients"),
    ]
    for module, roles, serves, expected in cases:
        with Ledger() as ledger, pytest.raises(ValueError) as raised:
            make(module, roles, serves)
        assert expected in str(raised.value)
        assert ledger.entries == []


def test_what_cannot_work_is_refused_on_every_rank(ranks):
    ranks(3).run(refused_roles)


def test_a_lost_push_is_named_in_time(ranks):
    server, *workers = ranks(3).run(lesson.lost_push, 1.0)
    assert server == "step 1: no push from worker 2"
    assert set(workers) == {"step 2: no answer from server 0"}
