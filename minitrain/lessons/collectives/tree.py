"""The lesson of `minitrain.collectives.tree`: bytes, sums and time of a tree."""

from __future__ import annotations

from minitrain.collectives import tree
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Runs the binomial tree; the table shows bytes, sums and time."""
    elements, rows = 1 << 20, Rows("Thakur et al. 2005")
    sent = "S · (1 for the parent, 1 a child)", costs.tree_all_reduce
    time = "2⌈log2 n⌉(α + βS)", costs.tree_all_reduce_time
    verbs, groups = "all_reduce reduce broadcast", lesson.groups_of(world)
    lesson.all_reduces(world, rows, "tree", tree, verbs, elements, sent, time, groups)
    lesson.show(world, "tree", tree.all_reduce, elements)
    return rows.claims()
