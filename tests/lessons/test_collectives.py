"""lesson: what the demos measure comes from the run, and a broken algorithm is found out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from minitrain.collectives import ring, tree
from minitrain.comm.messages import rank_and_size
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.pictures import collectives as pictures
from minitrain.lessons.rows import Rows


def one_step_short(tensor, group=None):
    """A ring whose ranks stop a step too early in the second half: the typical mistake, an off-by-one."""
    ring.reduce_scatter(tensor, group)
    return tensor


def judged(world, broken):
    module = SimpleNamespace(all_reduce=one_step_short if broken else ring.all_reduce)
    theory = ("", costs.ring_all_reduce), ("", costs.ring_all_reduce_time)
    rows = Rows()
    lesson.all_reduces(world, rows, "ring", module, "all_reduce", 101, *theory, lesson.groups_of(world))
    return [claim.holds for claim in rows.claims()]


def test_a_wrong_all_reduce_breaks_every_claim(ranks):
    assert ranks(4).run(judged, False) == [[True] * 3] * 4
    assert ranks(4).run(judged, True) == [[False] * 3] * 4


def wrong_values(world):
    """A broadcast of rank 1's values, and a reduce-scatter that adds nothing."""

    def broadcast(tensor, group=None):
        dist.broadcast(tensor, 1, group)
        return tensor

    def reduce_scatter(tensor, group=None):
        rank, ranks = rank_and_size(group)
        return ring.cut(tensor, ranks)[rank]

    found = []
    for verb in (broadcast, reduce_scatter):
        rows = Rows()
        lesson.values(world, rows, "ring", SimpleNamespace(**{verb.__name__: verb}), verb.__name__)
        found += [claim.holds for claim in rows.claims()]
    return found


def test_wrong_values_of_any_verb_are_seen(ranks):
    assert ranks(2).run(wrong_values) == [[False, False]] * 2


def pictured(world):
    _, around = lesson.virtual_run(world, ring.all_reduce, 8)
    _, through = lesson.virtual_run(world, tree.all_reduce, 8)
    figure = pictures.side_by_side({"ring": around, "tree": through})
    return [(axes.get_title(loc="left"), len(axes.patches)) for axes in figure.axes]


def test_the_picture_has_a_bar_for_each_message(ranks):
    (ring_title, ring_bars), (tree_title, tree_bars) = ranks(4).run(pictured)[0]
    assert ring_title.startswith("ring: ") and tree_title.startswith("tree: ")
    assert ring_bars == 4 * 2 * 3  # each rank sends 2(n−1)
    assert tree_bars == 2 * 3  # each rank but the root sends up once and is sent to once


def test_the_picture_of_one_rank_is_empty(ranks):
    assert [bars for _, bars in ranks(1).run(pictured)[0]] == [0, 0]


def empty(world):
    with pytest.raises(ValueError, match="elements=0 leaves nothing to send; use at least 1"):
        lesson.tensor(world, 0)
    return True


def test_an_empty_tensor_is_no_demo(ranks):
    assert ranks(1).run(empty) == [True]
