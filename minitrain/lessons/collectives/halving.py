"""The lesson of `minitrain.collectives.halving`: the ring's bytes in a tree's number of steps."""

from __future__ import annotations

from functools import partial

from minitrain.collectives import halving
from minitrain.comm import World
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Halves and doubles; the table shows the ring's bytes in a tree's number of steps, sums and time."""
    elements, rows = 1 << 20, Rows("Rabenseifner 2004")
    sent = "Σ of both ways' halves ≈ 2(n−1)/n · S", costs.halving_all_reduce
    time = "2 log2 n · α + 2(n−1)/n · βS", costs.halving_all_reduce_time
    groups = powers_of_two(world)
    lesson.all_reduces(
        world, rows, "halving", halving, "all_reduce reduce_scatter all_gather", elements, sent, time, groups
    )
    group = next(iter(groups.values()))
    lesson.show(world, "halving", partial(halving.all_reduce, group=group), elements, group)
    return rows.claims()


def powers_of_two(world: World) -> dict[str, Group]:
    """Everyone, if they are a power of two, and ranks 0 and 1, 2 and 3, …; the last of an odd number is alone."""
    pairs = [new_group([rank for rank in (k, k + 1) if rank < world.size]) for k in range(0, world.size, 2)]
    everyone = {f"{world.size} ranks": None} if world.size & (world.size - 1) == 0 else {}
    return {**everyone, "two ranks": pairs[world.rank // 2]}
