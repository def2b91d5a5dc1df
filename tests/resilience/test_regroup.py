"""Ranks that are left, where one is really killed."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from minitrain.comm.messages import all_reduce, rank_and_size
from minitrain.ranks import Ranks
from minitrain.resilience.regroup import checkpoint, meet, part, regroup, restore

ELEMENTS = 11


def survive(world, folder):
    """Rank 1 is killed; the others meet without it and read its part of the momentum from the files."""
    weights = torch.arange(float(ELEMENTS))
    checkpoint(folder, weights, 100 + weights[part(ELEMENTS)])
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    alive = [rank for rank in range(world.size) if rank != 1]
    group = meet(regroup(alive, micro_batches=6), seconds=30)
    count = torch.ones(1)
    all_reduce(count, group).wait()
    found = torch.zeros(ELEMENTS)
    momentum = restore(folder, found, group)
    return rank_and_size(group), float(count), found.tolist(), momentum.tolist()


@pytest.mark.parametrize(("size", "working"), [(3, 2), (4, 3)])
def test_a_rank_is_killed(tmp_path, size, working):
    with Ranks(size, device="cpu", survives=True) as ranks:
        found = ranks.run(survive, tmp_path)
    assert found.pop(1) is None
    expected = [100.0 + each for each in range(ELEMENTS)]
    assert [each[0] for each in found] == [(rank, working) for rank in range(working)]
    assert all(each[1] == working and each[2] == list(range(ELEMENTS)) for each in found)
    assert sum((each[3] for each in found), []) == expected
