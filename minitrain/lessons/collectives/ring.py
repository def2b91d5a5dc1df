"""The lesson of `minitrain.collectives.ring`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import ring as small
from minitrain.collectives.full.ring import all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Runs the ring; the table shows bytes and messages, equality with torch's sum, and time on the virtual clock.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, rank, paper = world.size, world.rank, "Patarasuk & Yuan 2009"
    formulas = ("2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · S", "2(n−1), empty chunks left out")
    size = elements + 1
    predicted = costs.ring_all_reduce(size, 4, n, rank)
    held = ("c₀ = ⌈elements/n⌉ · 4 B", 4 * costs.chunk_size(size, n, 0))
    claims = lesson.small_form(
        world, "ring all-reduce", small.all_reduce, all_reduce, size, predicted, formulas, held, paper
    )
    for size in (elements, elements + 1, n - 1):  # the second never divides when the first does; the last is too few
        predicted = costs.ring_all_reduce(size, 4, n, rank)
        claims += lesson.traffic(world, all_reduce, size, predicted, "ring all-reduce", formulas, paper)
    verbs = {
        "reduce-scatter": (reduce_scatter, costs.ring_reduce_scatter, "S − cᵣ", "n−1"),
        "all-gather": (all_gather, costs.ring_all_gather, "S − cᵣ₊₁", "n−1"),
        "broadcast": (broadcast, costs.ring_broadcast, "S; 0 on the last rank", "n; 0 on the last rank"),
    }
    for name, (verb, cost, *formula) in verbs.items():
        predicted = cost(elements + 1, 4, n, rank)
        claims += lesson.traffic(world, verb, elements + 1, predicted, f"ring {name}", (formula[0], formula[1]), paper)
    claims += lesson.same_sums(world, all_reduce, "ring all-reduce")

    even = -(-elements // n) * n  # rounded up, so that all chunks take the same time
    model = (4 * even, n, lesson.ALPHA, lesson.BETA)
    formula = "2(n−1)(α + βS/n)"
    for name, verb, predicted in (
        ("all-reduce", all_reduce, costs.ring_all_reduce_time(*model)),
        ("broadcast", broadcast, costs.ring_broadcast_time(*model)),
    ):
        key = name == "all-reduce"
        claims.append(lesson.virtual_time(world, verb, even, predicted, f"ring {name}", formula, paper, key))

    values = lesson.tensor(world, elements)
    with world.timed(f"ring all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, timeline = lesson.virtual_run(world, all_reduce, even)
    world.figure(lambda: timeline.draw(f"Ring all-reduce of {4 * even:,} bytes on {n} ranks"))
    return claims
