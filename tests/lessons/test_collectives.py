"""lesson: what the demos measure comes from the run, and a broken algorithm is found out."""

from __future__ import annotations

import pytest
import torch

from minitrain.collectives.full import ring, tree
from minitrain.comm import Handle
from minitrain.comm.chunks import flat_view
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson


def one_step_short(tensor, group=None):
    """A ring whose ranks stop a step too early in the second half: the typical mistake, an off-by-one."""
    chunks = flat_view("all_reduce", tensor, group, False).tensor_split(torch.distributed.get_world_size(group))
    ring.reduce_scatter_chunks(chunks, group)
    return Handle((), tensor)


def judged(world, broken):
    start = one_step_short if broken else ring.all_reduce
    predicted = costs.ring_all_reduce(101, 4, world.size, world.rank)
    claims = lesson.traffic(world, start, 101, predicted, "ring", ("", ""), "") + lesson.same_sums(world, start, "ring")
    return [claim.holds for claim in claims]


def test_a_wrong_all_reduce_breaks_every_claim(ranks):
    assert ranks(4).run(judged, False) == [[True] * 4] * 4
    assert ranks(4).run(judged, True) == [[False] * 4] * 4


def pictured(world):
    _, around = lesson.virtual_run(world, ring.all_reduce, 8)
    _, through = lesson.virtual_run(world, tree.all_reduce, 8)
    figure = lesson.side_by_side({"ring": around, "tree": through})
    return [(axes.get_title(loc="left"), len(axes.patches)) for axes in figure.axes]


def test_the_picture_has_a_bar_for_each_message(ranks):
    (ring_title, ring_bars), (tree_title, tree_bars) = ranks(4).run(pictured)[0]
    assert ring_title.startswith("ring: ") and tree_title.startswith("tree: ")
    assert ring_bars == 4 * 2 * 3  # each rank sends 2(n−1)
    assert tree_bars == 2 * 3  # each rank but the root sends up once and is sent to once


def test_the_picture_of_one_rank_is_empty(ranks):
    assert [bars for _, bars in ranks(1).run(pictured)[0]] == [0, 0]


def test_an_empty_tensor_is_no_demo():
    with pytest.raises(ValueError, match="elements=0 leaves nothing to send; use at least 1"):
        lesson.something_to_send(0)
