"""Averaging every H-th step: against torch's own averager, against one device on a GPT, over groups of nodes."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from minitrain.comm import axes
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.hierarchical_sgd import HierarchicalSGD
from minitrain.data_parallel.local_sgd import LocalSGD
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


@pytest.mark.parametrize("make", [LocalSGD, DiLoCo, lambda module, every: HierarchicalSGD(module, every, None, None)])
def test_a_period_below_one(make):
    with pytest.raises(AssertionError, match="every=0 must be at least 1"):
        make(torch.nn.Linear(2, 2), 0)
