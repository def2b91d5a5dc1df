"""Checks before anything is sent: the same clear error on every rank, and no rank left waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minitrain.collectives.full import native, ring
from minitrain.comm import axes
from minitrain.comm.control import agree, any_of, gather_objects, leave_all
from minitrain.comm.groups import new_group
from tests.processes import becomes


def gathered(world):
    values = [list(range(size)) for size in (0, 1000, 3, 7)]
    pair = axes(pair=world.size // 2, member=2)["member"].get_group()
    first = world.rank // 2 * 2
    return (gather_objects(values[world.rank]), gather_objects(values[world.rank], pair)) == (
        values,
        values[first : first + 2],
    )


def test_objects_of_any_length_come_whole_and_in_rank_order(ranks):
    assert ranks(4).run(gathered) == [True] * 4


def disagree(world):
    tensor = torch.zeros(4, 2, dtype=torch.complex64)
    with pytest.raises(ValueError, match="all_reduce: `tensor` is conjugated or negated when it is read on rank 1"):
        agree("all_reduce", tensor.conj() if world.rank == 1 else tensor)
    agree("all_reduce", torch.zeros(1))  # the ranks are still in step


def test_every_rank_gets_the_same_error(ranks):
    ranks(3).run(disagree)


def different_calls(world):
    with pytest.raises(ValueError) as error:
        (ring.all_gather if world.rank == 1 else ring.reduce_scatter)(torch.zeros(5), check=True)
    with pytest.raises(ValueError, match="all_reduce on rank 0,2, another call on rank 1"):
        gather_objects("claims") if world.rank == 1 else native.all_reduce(torch.zeros(5), check=True)
    agree("all_reduce", torch.zeros(1))  # the ranks are still in step
    return str(error.value)


def test_ranks_in_different_calls_are_told(ranks):
    says = "ranks are in different calls: reduce_scatter on rank 0,2, all_gather on rank 1; make the same calls"
    assert all(said.startswith(says) for said in ranks(3).run(different_calls))


def flags(world):
    """What each rank learns while it does something else, twice in a row."""
    first = any_of([world.rank == 1, False])
    second = any_of([False, world.rank == 0])
    return first(), second()


def test_flags_of_any_rank_reach_all(ranks):
    assert ranks(3).run(flags) == [([True, False], [False, True])] * 3


def threads():
    return len(os.listdir("/proc/self/task"))


def use_a_group(world):
    group = new_group(range(world.size))
    dist.all_reduce(torch.ones(3), group=group)
    return threads()


def threads_left(world):
    leave_all()
    before = threads()
    during = use_a_group(world)
    leave_all()
    return during > before, becomes(lambda: threads() <= before, 10)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_no_thread_of_a_group_outlives_it(ranks):
    assert ranks(3).run(threads_left) == [(True, True)] * 3
