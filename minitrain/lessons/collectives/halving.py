"""The lesson of `minitrain.collectives.halving`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import halving as small
from minitrain.collectives.full.halving import all_gather, all_reduce, reduce_scatter
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Halves and doubles; the table shows the ring's bytes in a tree's number of steps, sums and time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, rank, paper = world.size, world.rank, "Rabenseifner 2004"
    folding = "; S more for a folded pair"
    verbs = {
        "all-reduce": (all_reduce, costs.halving_all_reduce, "≈ 2(n−1)/n · S" + folding, "2 log2 n"),
        "reduce-scatter": (reduce_scatter, costs.halving_reduce_scatter, "S − cᵣ" + folding, "log2 n"),
        "all-gather": (all_gather, costs.halving_all_gather, "≈ (n−1)/n · S" + folding, "log2 n"),
    }
    size = elements + 1
    enough = 1 << (n - 1).bit_length()  # the next power of two
    formulas = ("≈ 2(n−1)/n · S", "2 log2 n")
    if n == enough:
        predicted = costs.halving_all_reduce(size, 4, n, rank)
        held = ("c₀ + … of n/2 chunks ≈ S/2", 4 * costs.chunk_start(size, n, n // 2))
        claims = lesson.small_form(
            world, "halving all-reduce", small.all_reduce, all_reduce, size, predicted, formulas, held, paper
        )
    else:
        what = f"small form: halving all-reduce of {size:,} float32: bytes sent by this rank"
        claims = [Claim.needs_ranks(enough, what, formulas[0], paper, key=True)]
    for name, (verb, cost, *formulas) in verbs.items():
        predicted = cost(elements + 1, 4, n, rank)
        claims += lesson.traffic(
            world, verb, elements + 1, predicted, f"halving {name}", (formulas[0], formulas[1]), paper
        )
    claims += lesson.same_sums(world, all_reduce, "halving all-reduce")

    cores = 1 << (n.bit_length() - 1)
    even = -(-elements // cores) * cores  # rounded up, so that all blocks take the same time
    predicted = costs.halving_all_reduce_time(4 * even, n, lesson.ALPHA, lesson.BETA)
    formula = "2 log2 m · α + 2(m−1)/m · βS, + 2(α + βS) if n > m"
    claims.append(lesson.virtual_time(world, all_reduce, even, predicted, "halving all-reduce", formula, paper))

    values = lesson.tensor(world, elements)
    with world.timed(f"halving all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, timeline = lesson.virtual_run(world, all_reduce, even)
    world.figure(lambda: timeline.draw(f"Halving and doubling: all-reduce of {4 * even:,} bytes on {n} ranks"))
    return claims
