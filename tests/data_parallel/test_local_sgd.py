"""Averaging every H-th step: against torch's own averager, against one device on a GPT, over groups of nodes."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from minitrain.comm import axes
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.hierarchical_sgd import HierarchicalSGD
from minitrain.data_parallel.local_sgd import LocalSGD, average
from minitrain.lessons.data_parallel import rounds
from tests.data_parallel.models import gpt, tokens


def train(model, world, steps, after, lr=0.1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        model(*tokens(2, 100 * step + world.rank))[1].backward()
        if isinstance(after, HierarchicalSGD):
            after.synchronize()
        optimizer.step()
        after.after_step()
    return [p.detach().clone() for p in model.parameters()]


class Torchs:
    """torch.distributed's averager, with which the steps of local SGD are those of ours."""

    def __init__(self, model, every):
        # It averages before it counts the step, from `warmup_steps` on.
        self.model, self.averager = model, PeriodicModelAverager(period=every, warmup_steps=every - 1)

    def after_step(self):
        self.averager.average_parameters(self.model.parameters())


def like_torch(world, every, steps):
    ours, theirs = gpt(seed=0), gpt(seed=0)
    found = train(ours, world, steps, LocalSGD(ours, every))
    for a, b in zip(found, train(theirs, world, steps, Torchs(theirs, every)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("size", "every", "steps"), [(2, 1, 3), (3, 2, 5)])
def test_local_sgd_is_torchs(ranks, size, every, steps):
    ranks(size).run(like_torch, every, steps)


def as_nodes(world):
    """Two nodes of two: a node's ranks stay alike, and an average makes both nodes alike."""
    mesh, model = axes(node=2, local=2), gpt(seed=0)
    wrapped = HierarchicalSGD(model, 3, mesh.get_group("local"), mesh.get_group("node"))
    parted = torch.cat([p.flatten() for p in train(model, world, 2, wrapped)])
    met = torch.cat([p.flatten() for p in train(model, world, 1, wrapped)])
    # Without this rank's own gradients, AdamW's states differ from node to node.
    return parted, met


def test_nodes_part_and_meet(ranks):
    parted, met = zip(*ranks(4).run(as_nodes), strict=True)
    assert parted[0].equal(parted[1]) and parted[2].equal(parted[3])
    assert not parted[0].equal(parted[2])
    assert all(each.equal(met[0]) for each in met)


def restarted_by_the_outer_step(world):
    """The inner optimizer goes on from the shared parameters, on every rank."""
    model = gpt(seed=0)
    wrapped = DiLoCo(model, 4)
    before = [p.clone() for p in wrapped.shared]
    train(model, world, 4, wrapped)
    for shared, mine, first in zip(wrapped.shared, model.parameters(), before, strict=True):
        assert shared.equal(mine) and not shared.equal(first)
    return [p.detach() for p in model.parameters()]


def test_after_a_round_all_ranks_share_the_parameters(ranks):
    found = ranks(3).run(restarted_by_the_outer_step)
    assert all(a.equal(b) for mine in found for a, b in zip(mine, found[0], strict=True))


def means(world):
    """Two dtypes would not share an all-reduce; shapes and gaps in memory may be any."""
    tensors = [torch.full((2, 3), float(world.rank)).t(), torch.full((), 2.0 * world.rank), torch.empty(0)]
    average(tensors)
    return tensors


def test_means(ranks):
    for turned, scalar, empty in ranks(3).run(means):
        assert turned.shape == (3, 2) and turned.eq(1).all() and scalar == 2 and not len(empty)


@pytest.mark.parametrize("make", [LocalSGD, DiLoCo, lambda module, every: HierarchicalSGD(module, every, None, None)])
def test_a_period_below_one(make):
    with pytest.raises(AssertionError, match="every=0 must be at least 1"):
        make(torch.nn.Linear(2, 2), 0)


def learns(world):
    with pytest.raises(ValueError, match="64 must be at least 1 and divide steps=100"):
        rounds.losses(world, 100, (1, 4, 64))
    return rounds.losses(world, steps=8, periods=(2, 8))


def test_a_gpt_learns(ranks):
    first, second = ranks(2).run(learns)
    assert first == second
    # ln 256 = 5.545 before the first step.
    assert all(3 < loss < 5.5 for loss in first.values())
