"""A rehearsal of what runs on GPUs: the same mistakes are found as on CPUs, and it knows which tensors are where."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import messages
from minitrain.comm.control import leave
from minitrain.comm.groups import limited
from minitrain.ranks.failures import RanksError
from tests.comm.test_rehearsal import (
    MISTAKES,
    batched,
    ends_in_our_order,
    ends_in_set_order,
    other_order,
    reads,
    two_way,
)
from tests.second_device.gpus import Where, needs_device, pools

pytestmark = needs_device


@pytest.fixture(scope="module")
def rehearsing():
    with pools(check=False) as ranks:
        yield ranks(Where(4, 4, "nccl"))


@pytest.mark.parametrize("mistake", (two_way, other_order, ends_in_set_order), ids=lambda mistake: mistake.__name__)
def test_what_gloo_forgives_is_found(rehearsing, mistake):
    with pytest.raises(RanksError, match=MISTAKES[mistake]):
        rehearsing.run(mistake)


def splits(world, order):
    """As DeviceMesh makes the groups of an axis; then the ranks of one group use it in their own order."""
    rows = [[0, 1], [2, 3]]
    groups = [dist.split_group(split_ranks=rows, pg_options=limited()) for _ in rows]
    x = [torch.ones(3, device=world.device) for _ in groups]
    for handle in [messages.all_reduce(x[index], groups[index]) for index in order[world.rank % 2]]:
        handle.wait()
    leave(groups)


def test_groups_that_are_split_from_everyones(rehearsing):
    rehearsing.run(splits, ((0, 1), (0, 1)))
    with pytest.raises(RanksError, match=r"one at a time: .*\(a circle\): rank 0 in all_reduce of 0,1#\d+ "):
        rehearsing.run(splits, ((0, 1), (1, 0)))


def test_tensors_of_the_cpu_are_told_apart(rehearsing):
    rehearsing.run(reads)
    before = rehearsing.run(copies)
    assert before == [2] * 4


def copies(world):
    """How often the program waits for copies to the CPU and from it."""
    before, x = world.rehearsal.reads.total(), torch.ones(3, device=world.device)
    host = torch.empty(3, pin_memory=True)
    host.copy_(x, non_blocking=True)
    x.copy_(host)
    host.copy_(x)
    x.cpu()
    return world.rehearsal.reads.total() - before


@pytest.mark.parametrize("right", (batched, ends_in_our_order), ids=lambda right: right.__name__)
def test_what_is_right_is_left_alone(rehearsing, right):
    rehearsing.run(right)
