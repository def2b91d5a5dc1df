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
    verbs = {"all-reduce": lesson.Verb(start, costs.ring_all_reduce, "", "", "")}
    groups = lesson.groups_of(world)
    claims = lesson.traffic(world, groups, "ring", verbs, 101) + lesson.values(world, groups, "ring", verbs)
    return [claim.holds for claim in claims]


def test_a_wrong_all_reduce_breaks_every_claim(ranks):
    assert ranks(4).run(judged, False) == [[True] * 4] * 4
    assert ranks(4).run(judged, True) == [[False] * 4] * 4


def other_root(world):
    """A verb that forgets which root was named, and a reduce-scatter that returns the next rank's chunk."""

    def from_rank_0(tensor, source, group=None):
        return ring.broadcast(tensor, 0, group)

    def of_the_next(tensor, group=None):
        ranks = torch.distributed.get_world_size(group)
        ring.all_reduce(tensor, group).wait()
        return tensor.tensor_split(ranks)[(torch.distributed.get_rank(group) + 1) % ranks]

    mine = torch.arange(9) + 100 * world.rank
    return (
        lesson.unlike("broadcast", lambda tensor: from_rank_0(tensor, 0), mine, None, 0),
        lesson.unlike("broadcast", lambda tensor: from_rank_0(tensor, 1), mine, None, 1),
        lesson.unlike("reduce-scatter", of_the_next, mine, None, 0),
    )


def test_wrong_values_of_any_verb_are_seen(ranks):
    assert ranks(3).run(other_root) == [(0, 9, 3)] * 3


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
