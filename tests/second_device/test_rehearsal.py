"""A rehearsal of what runs on GPUs: the same mistakes are found as on CPUs, and it knows which tensors are where."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import messages
from minitrain.comm.control import leave
from minitrain.comm.groups import limited
from minitrain.ranks.failures import RanksError
from tests.comm.test_rehearsal import MISTAKES, ends_in_our_order, reads
from tests.second_device.gpus import Where, needs_device, pools

pytestmark = needs_device


@pytest.fixture(scope="module")
def rehearsing():
    with pools(check=False) as ranks:
        yield ranks(Where(4, 4, "nccl"))


@pytest.mark.parametrize("mistake", ("two_way_after_a_batch", "other_order", "ends_in_set_order"))
def test_what_gloo_forgives_is_found(rehearsing, mistake):
    (function,) = (each for each in MISTAKES if each.__name__ == mistake)
    with pytest.raises(RanksError, match=MISTAKES[function]):
        rehearsing.run(function)


def splits(world):
    """As DeviceMesh makes the groups of an axis: how many steps are recorded, on which ranks."""
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]], pg_options=limited())
    messages.all_reduce(torch.ones(3, device=world.device), group).wait()
    leave([group])
    return [(step.verb, step.group) for step in world.rehearsal.steps]


def test_groups_that_are_split_from_everyones(rehearsing):
    for rank, steps in enumerate(rehearsing.run(splits)):
        assert steps[0] == ("make", "0,1 and 2,3")
        assert ("all_reduce", "0,1#1" if rank < 2 else "2,3#1") in steps and steps[-1][0] == "end"


def test_tensors_of_the_cpu_are_told_apart(rehearsing):
    rehearsing.run(reads)
    assert rehearsing.run(copies) == [2] * 4


def copies(world):
    """How often the program waits for copies to the CPU and from it."""
    before, x = world.rehearsal.reads.total(), torch.ones(3, device=world.device)
    host = torch.empty(3, pin_memory=True)
    host.copy_(x, non_blocking=True)
    x.copy_(host)
    host.copy_(x)
    x.cpu()
    return world.rehearsal.reads.total() - before


def test_what_is_right_is_left_alone(rehearsing):
    rehearsing.run(ends_in_our_order)
