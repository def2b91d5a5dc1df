"""The lesson of `minitrain.collectives.tree`: its bytes, sums and time, and where the ring becomes faster.

Where tree and ring cross is derived from the times of both, and sought near there on the virtual clock.
"""

from __future__ import annotations

from functools import partial

from minitrain.collectives import ring, tree
from minitrain.comm import World
from minitrain.comm.messages import Group, rank_and_size
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.pictures import collectives as pictures
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Runs the binomial tree; the table shows bytes, sums, time, and where tree and ring cross."""
    elements = 1 << 20
    rows, groups = Rows("Thakur et al. 2005"), lesson.groups_of(world)
    sent = "S · (1 for the parent, 1 a child)", costs.tree_all_reduce
    time = "2⌈log2 n⌉(α + βS)", costs.tree_all_reduce_time
    lesson.all_reduces(world, rows, "tree", tree, "all_reduce reduce broadcast", elements, sent, time, groups)

    what, formula = "bytes from which on the ring is faster", "α/β · (n−1−⌈log2 n⌉) / (⌈log2 n⌉ − (n−1)/n)"
    if world.size < 3:
        rows.needs(3, what, formula, "derived")
    for where, group in groups.items() if world.size >= 3 else ():
        ranks = rank_and_size(group)[1]
        predicted, step = costs.crossover(ranks, lesson.ALPHA, lesson.BETA), 4 * ranks  # to an element of a chunk
        # On three ranks a ring has no more steps than a tree, and is faster from the first byte on.
        near = range(max(1, int(predicted / step) - 2), int(predicted / step) + 4)
        found = next((step * chunk for chunk in near if ring_is_faster(world, group, chunk)), 0)
        rows.add(what, formula, predicted, found, "B", "derived", case=where, how="virtual clock", absolute=step)

    lesson.tell(world, "tree", tree.all_reduce, elements)
    runs = {module.__name__.split(".")[-1]: module.all_reduce for module in (ring, tree)}
    lines = {f"{name} all-reduce": lesson.virtual_run(world, start, elements)[1] for name, start in runs.items()}
    world.figure(lambda: pictures.side_by_side(lines))
    return rows.claims()


def ring_is_faster(world: World, group: Group, chunk: int) -> bool:
    """Whether the ring's all-reduce is faster than the tree's, with so many elements in each chunk."""
    elements = chunk * rank_and_size(group)[1]
    starts = (partial(module.all_reduce, group=group) for module in (ring, tree))
    around, through = (lesson.virtual_run(world, start, elements, group=group)[0] for start in starts)
    return around < through
