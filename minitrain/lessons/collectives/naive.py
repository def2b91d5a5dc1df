"""The lesson of `minitrain.collectives.naive`: bytes, sums and time of an all-reduce through one rank."""

from __future__ import annotations

from minitrain.collectives import naive
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Adds everything on rank 0; the table shows bytes, sums and time."""
    elements, rows = 1 << 20, Rows("Thakur et al. 2005")
    sent = "(n−1)·S on the root, else S", costs.naive_all_reduce
    time = "2(n−1)(α + βS)", costs.naive_all_reduce_time
    lesson.all_reduces(world, rows, "naive", naive, "all_reduce", elements, sent, time, lesson.groups_of(world))
    lesson.show(world, "naive", naive.all_reduce, elements)
    return rows.claims()
