"""Groups of ranks: in which order they end, how their control connections meet, and how long ranks wait in them.

gloo lets groups end in any order, and gives them the same names on all ranks. NCCL does neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import exchange
from minitrain.comm.control import leave, leave_all
from minitrain.comm.groups import new_group
from minitrain.composition.layout import Axes, make_axes
from minitrain.composition.settings import Layout
from minitrain.ranks import Ranks

LAYOUTS = Layout(dp=2, tp=2), Layout(pp=2, tp=2), Layout(dp=4, ep=2), Layout(dp=2, cp=2)


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
