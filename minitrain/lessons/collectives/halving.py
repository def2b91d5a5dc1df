"""The lesson of `minitrain.collectives.halving`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import halving as small
from minitrain.collectives.full.halving import all_gather, all_reduce, reduce_scatter
from minitrain.comm import World
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson

PAPER = "Rabenseifner 2004"


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Halves and doubles; the table shows the ring's bytes in a tree's number of steps, sums and time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, groups = world.size, lesson.groups_of(world)
    folding = "; S more for a folded pair"

    def fits(ranks: int) -> bool:
        return ranks & (ranks - 1) == 0

    verbs = {
        "all-reduce": lesson.Verb(
            all_reduce,
            costs.halving_all_reduce,
            "≈ 2(n−1)/n · S" + folding,
            "2 log2 n",
            PAPER,
            small.all_reduce,
            fits,
        ),
        "reduce-scatter": lesson.Verb(
            reduce_scatter,
            costs.halving_reduce_scatter,
            "S − cᵣ" + folding,
            "log2 n",
            PAPER,
            small.reduce_scatter,
            fits,
        ),
        "all-gather": lesson.Verb(
            all_gather,
            costs.halving_all_gather,
            "≈ (n−1)/n · S" + folding,
            "log2 n",
            PAPER,
            small.all_gather,
            fits,
        ),
    }
    size, formula = elements + 1, "c₀ + … of n/2 chunks ≈ S/2"
    if fits(n):
        held = 4 * costs.chunk_start(size, n, n // 2)
        memory = lesson.memory(world, "halving", small.all_reduce, size, formula, held, PAPER)
    else:
        enough = 1 << (n - 1).bit_length()  # the next power of two
        memory = Claim.needs_ranks(enough, lesson.HELD.format("halving", size), formula, PAPER)
    timed = {
        "full form": (all_reduce, costs.halving_all_reduce_time),
        "small form": (small.all_reduce, costs.halving_all_reduce_time),
    }
    formula = "2 log2 m · α + 2(m−1)/m · βS, + 2(α + βS) if n > m"
    claims = [
        *lesson.traffic(world, groups, "halving", verbs, elements),
        memory,
        *lesson.values(world, groups, "halving", verbs),
        lesson.times(world, groups, "halving all-reduce", timed, elements, formula, PAPER, True, fits),
    ]

    values = lesson.tensor(world, elements)
    with world.timed(f"halving all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    cores = 1 << (n.bit_length() - 1)
    even = -(-elements // cores) * cores  # rounded up, so that all blocks take the same time
    _, timeline = lesson.virtual_run(world, all_reduce, even)
    world.figure(lambda: timeline.draw(f"Halving and doubling: all-reduce of {4 * even:,} bytes on {n} ranks"))
    return claims
