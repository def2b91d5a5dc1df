"""The lesson of `minitrain.collectives.tree`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import tree as small
from minitrain.collectives.full import ring
from minitrain.collectives.full.tree import all_reduce, broadcast, reduce
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Runs the binomial tree; the table shows bytes, messages, sums, time, and where tree and ring cross.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, rank, paper = world.size, world.rank, "Thakur et al. 2005"
    verbs = {
        "all-reduce": (all_reduce, costs.tree_all_reduce, "S · (1 for the parent, 1 a child)", "1 + children"),
        "reduce": (reduce, costs.tree_reduce, "S, 0 on the root", "1, 0 on the root"),
        "broadcast": (broadcast, costs.tree_broadcast, "S · children", "children"),
    }
    size = elements + 1
    predicted = costs.tree_all_reduce(size, 4, n, rank)
    formulas = ("S · (1 for the parent, 1 a child)", "1 + children")
    claims = lesson.small_form(
        world, "tree all-reduce", small.all_reduce, all_reduce, size, predicted, formulas, ("S", 4 * size), paper
    )
    for name, (verb, cost, *formulas) in verbs.items():
        predicted = cost(elements + 1, 4, n, rank)
        claims += lesson.traffic(
            world, verb, elements + 1, predicted, f"tree {name}", (formulas[0], formulas[1]), paper
        )
    claims += lesson.same_sums(world, all_reduce, "tree all-reduce")
    model = (4 * elements, n, lesson.ALPHA, lesson.BETA)
    for name, verb, formula, predicted in (
        ("all-reduce", all_reduce, "2⌈log2 n⌉(α + βS)", costs.tree_all_reduce_time(*model)),
        ("broadcast", broadcast, "⌈log2 n⌉(α + βS)", costs.tree_broadcast_time(*model)),
    ):
        key = name == "all-reduce"
        claims.append(lesson.virtual_time(world, verb, elements, predicted, f"tree {name}", formula, paper, key))
    claims += crossing(world)

    values = lesson.tensor(world, elements)
    with world.timed(f"tree all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, around = lesson.virtual_run(world, ring.all_reduce, elements)
    _, through = lesson.virtual_run(world, all_reduce, elements)
    world.figure(lambda: lesson.side_by_side({"ring all-reduce": around, "tree all-reduce": through}))
    return claims


def crossing(world: World) -> list[Claim]:
    """Claims that the tree is faster than the ring below the predicted crossing point, and slower above it."""
    formula = "1 at S = α/β · (n−1−⌈log2 n⌉) / (⌈log2 n⌉ − (n−1)/n)"
    cases = (("half the crossing point", 0.5, "<="), ("twice the crossing point", 2.0, ">="))
    claims = []
    for where, factor, relation in cases:
        what = f"tree's time / ring's, at {where}"
        if world.size < 4:  # a ring of 2 or 3 ranks has no more steps than a tree
            claims.append(Claim.needs_ranks(4, what, formula, key=True))
            continue
        elements = int(factor * costs.crossover(world.size, lesson.ALPHA, lesson.BETA) / 4)
        tree_time, _ = lesson.virtual_run(world, all_reduce, elements)
        ring_time, _ = lesson.virtual_run(world, ring.all_reduce, elements)
        claims.append(Claim(what, formula, 1, tree_time / ring_time, how="virtual clock", relation=relation, key=True))
    return claims
