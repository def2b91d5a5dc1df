"""Groups of ranks: in which order they end, how their control connections meet, and how long ranks wait in them.

gloo lets groups end in any order, and gives them the same names on all ranks. NCCL does neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import World, exchange
from minitrain.comm.control import control, gather_objects, leave, leave_all
from minitrain.comm.groups import new_group
from minitrain.composition.layout import Axes, make_axes
from minitrain.composition.settings import Layout
from minitrain.ranks import Ranks

LAYOUTS = Layout(dp=2, tp=2), Layout(pp=2, tp=2), Layout(dp=4, ep=2), Layout(dp=2, cp=2)
LIMIT = 4.0  # seconds


def members(group):
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def made(axes: Axes) -> list[tuple[int, ...]]:
    """The ranks of each group of a layout, in the order of making. Everyone's group may be one of them; it stays."""
    shared = (dist.group.WORLD, axes.alone, axes.dp)  # an axis without a group of its own has one of these
    groups = [axes.pp, axes.replicas, axes.experts, axes.cp, axes.tp]
    own = [group for group in groups if group not in shared]
    last = [axes.dp] if axes.layout.ep > 1 or axes.layout.dp == dist.get_world_size() else []
    first = [axes.dp] if not last and axes.dp is not axes.alone else []
    order = [group for group in own if group is axes.pp] + first + [group for group in own if group is not axes.pp]
    both = [axes.dp_cp] if axes.layout.cp > 1 else []  # made after all others
    return [members(group) for group in [*order, axes.alone, *last, *both]]


@contextmanager
def recorded() -> Iterator[list[tuple[int, ...]]]:
    """The ranks of each group that is ended meanwhile, in this order."""
    ended, destroy = [], dist.destroy_process_group

    def end(group=None):
        ended.append(members(group))
        destroy(group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", end)
        yield ended


def left(world):
    leave_all()  # the groups of tests before
    begun = []
    for layout in LAYOUTS:
        pair = new_group([0, 1])  # which leaves ranks out
        begun += [(0, 1)] if world.rank < 2 else []
        begun += made(make_axes(layout))
    assert world.rank > 1 or members(pair) == (0, 1)
    with recorded() as ended:
        world.stop()
    return begun, ended


def test_groups_end_in_reverse_order_and_everyones_last():
    with Ranks(4, device="cpu") as own:
        for begun, ended in own.run(left):
            assert ended == [*begun[::-1], (0, 1, 2, 3)]


def told_under_other_names(world):
    told = []
    for _ in range(3):
        every = [new_group(pair) for pair in ([0, 1], [1, 2], [0, 1])]
        groups = [group for group in every if isinstance(group, dist.ProcessGroup)]
        for group in groups:
            name = group.group_name
            group._set_group_name(f"{name} on rank {world.rank}")
            told.append(gather_objects(world.rank, group))
            group._set_group_name(name)
        leave(groups)
    return told


def test_control_connections_do_not_depend_on_the_name_of_a_group(ranks):
    """The same ranks form groups again and again; rank 1 is in more of them than the others."""
    first, both, last = [[0, 1], [0, 1]], [[0, 1], [1, 2], [0, 1]], [[1, 2]]
    assert ranks(3).run(told_under_other_names) == [first * 3, both * 3, last * 3]


def left_unused(world):
    """Rank 2 has never used the first of two groups of the same ranks."""
    first = new_group([0, 1, 2])
    if world.rank < 2:
        exchange(torch.ones(1), 1 - world.rank, torch.ones(1), 1 - world.rank, first).wait()
    leave([first])
    dist.all_reduce(total := torch.ones(1), group=new_group([0, 1, 2]))
    return total.item()


def test_a_group_that_a_rank_has_not_used_counts_all_the_same(ranks):
    assert ranks(3).run(left_unused) == [3.0] * 3


def limits(world):
    """The limits of all groups that there are, and of the control connections of each."""
    axes = make_axes(Layout(pp=2, dp=2, tp=2))
    pair = new_group([0, 1])
    groups = list(dist.distributed_c10d._world.pg_map)
    assert {axes.pp, axes.dp, axes.tp, axes.experts, axes.replicas, axes.alone} < set(groups) and (pair in groups) == (
        world.rank < 2
    )
    each = [group._get_backend(torch.device("cpu")) for group in groups] + [control(group) for group in groups]
    return {backend.options._timeout for backend in each}


def test_every_group_has_the_limit_of_the_run():
    """Ranks that a program starts end a call themselves; torch's limit comes half a minute after theirs."""
    with Ranks(8, device="cpu", timeout=200.0) as own:
        assert own.run(limits) == [{timedelta(seconds=230)}] * 8


def swap(axes: Axes) -> None:
    other = 1 - axes.place["pp"]
    exchange(torch.ones(1), other, torch.ones(1), other, axes.pp).wait()


# What the last of 4 ranks leaves out, and which ranks then wait for it, or for one that waits.
LEFT_OUT = {
    "all-reduce along dp": (Layout(dp=2, tp=2), lambda axes: dist.all_reduce(torch.ones(1), group=axes.dp), {1}),
    "message along pp": (Layout(pp=2, tp=2), swap, {1}),
    "another layout": (Layout(dp=2, tp=2), lambda axes: make_axes(Layout(pp=2, tp=2)), {0, 1, 2}),
}


def leave_out(world, what, store):
    """All ranks but the last make a call: whether it failed, and how long it took."""
    layout, call, _ = LEFT_OUT[what]
    world.stop()  # the world of the case before; while this one lives, the last rank keeps its connections
    World.start(rank=world.rank, size=world.size, store=store, device="cpu", timeout=LIMIT)
    axes = make_axes(layout)
    gather_objects(None, axes.tp)
    begin, failed = time.monotonic(), False
    try:
        if world.rank < world.size - 1:
            call(axes)
    except RuntimeError:
        failed = True
    return failed, time.monotonic() - begin


@pytest.fixture(scope="module")
def four():
    with Ranks(4, device="cpu", timeout=10 * LIMIT) as own:
        yield own


@pytest.mark.parametrize("what", LEFT_OUT)
def test_no_rank_waits_longer_than_the_limit(four, what, tmp_path):
    for rank, (failed, seconds) in enumerate(four.run(leave_out, what, tmp_path / "store")):
        waits = rank in LEFT_OUT[what][2]
        assert failed == waits
        assert not waits or seconds > LIMIT - 0.5
