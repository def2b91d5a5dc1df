"""The lesson of `minitrain.collectives.tree`: what its demo claims, and how that is measured.

Where tree and ring cross is derived from the times of both, and sought on the virtual clock by halving intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from minitrain.collectives import tree as small
from minitrain.collectives.full import ring
from minitrain.collectives.full.tree import all_reduce, broadcast, reduce
from minitrain.comm import World
from minitrain.comm.messages import Group, rank_and_size
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.collectives import common as lesson

PAPER = "Thakur et al. 2005"


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Runs the binomial tree; the table shows bytes, messages, sums, time, and where tree and ring cross.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    groups = lesson.groups_of(world)
    verbs = {
        "all-reduce": lesson.Verb(
            all_reduce,
            costs.tree_all_reduce,
            "S · (1 for the parent, 1 a child)",
            "1 + children",
            PAPER,
            small.all_reduce,
        ),
        "reduce": lesson.Verb(
            reduce, costs.tree_reduce, "S; 0 on the root", "1 or 0", PAPER, small.reduce, rooted=True
        ),
        "broadcast": lesson.Verb(
            broadcast, costs.tree_broadcast, "S · children", "children", PAPER, small.broadcast, rooted=True
        ),
    }
    twice = {
        "full form": (all_reduce, costs.tree_all_reduce_time),
        "small form": (small.all_reduce, costs.tree_all_reduce_time),
    }
    once = {"reduce": (reduce, costs.tree_broadcast_time), "broadcast": (broadcast, costs.tree_broadcast_time)}
    whole, half = "2⌈log2 n⌉(α + βS)", "⌈log2 n⌉(α + βS)"
    held = 4 * (elements + 1)
    claims = [
        *lesson.traffic(world, groups, "tree", verbs, elements),
        lesson.memory(world, "tree", small.all_reduce, elements + 1, "S", held, PAPER),
        *lesson.values(world, groups, "tree", verbs),
        lesson.times(world, groups, "tree all-reduce", twice, elements, whole, PAPER, key=True),
        lesson.times(world, groups, "tree reduce, and broadcast", once, elements, half, PAPER),
        crossing(world, groups),
    ]

    values = lesson.tensor(world, elements)
    with world.timed(f"tree all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, around = lesson.virtual_run(world, ring.all_reduce, elements)
    _, through = lesson.virtual_run(world, all_reduce, elements)
    world.figure(lambda: lesson.side_by_side({"ring all-reduce": around, "tree all-reduce": through}))
    return claims


def crossing(world: World, groups: Mapping[str, Group]) -> Claim:
    """The claim on the size from which on the ring is faster than the tree, to the last element of a chunk.

    On three ranks a ring has no more steps than a tree, and is faster from the first byte on.
    """
    what, formula = "bytes from which on the ring is faster", "α/β · (n−1−⌈log2 n⌉) / (⌈log2 n⌉ − (n−1)/n)"
    if world.size < 3:
        return Claim.needs_ranks(3, what, formula, "derived", key=True)
    cases = {}
    for where, group in groups.items():
        ranks = rank_and_size(group)[1]
        slower, faster = 0, 1  # elements of a chunk
        while not ring_is_faster(world, group, faster):
            slower, faster = faster, 2 * faster
        while faster - slower > 1:
            middle = (slower + faster) // 2
            slower, faster = (slower, middle) if ring_is_faster(world, group, middle) else (middle, faster)
        step = 4 * ranks
        predicted, found = costs.crossover(ranks, lesson.ALPHA, lesson.BETA), step * faster
        cases[where] = Claim("", formula, predicted, found, "B", "derived", "virtual clock", absolute=step)
    return fold(what, cases, key=True)


def ring_is_faster(world: World, group: Group, chunk: int) -> bool:
    """Whether the ring's all-reduce is faster than the tree's, with so many elements in each chunk."""
    (around, _), (through, _) = (
        lesson.virtual_run(world, partial(verb, group=group), chunk * rank_and_size(group)[1], group=group)
        for verb in (ring.all_reduce, all_reduce)
    )
    return around < through
