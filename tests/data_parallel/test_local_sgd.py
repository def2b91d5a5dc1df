"""Averaging every H-th step as torch's own averager does."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from minitrain.data_parallel.local_sgd import LocalSGD
from tests.data_parallel.models import gpt, tokens


def train(model, world, steps, after, lr=0.1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        model(*tokens(2, 100 * step + world.rank))[1].backward()
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
