"""The lesson of `minitrain.collectives.naive`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import naive as small
from minitrain.collectives.full.naive import ROOT, all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson

PAPER = "Thakur et al. 2005"


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Adds everything on rank 0; the table shows the load on that root, as well as bytes, messages, sums and time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, groups = world.size, lesson.groups_of(world)
    verbs = {
        "all-reduce": lesson.Verb(
            all_reduce, costs.naive_all_reduce, "(n−1)·S on the root, else S", "n−1 or 1", PAPER, small.all_reduce
        ),
        "reduce-scatter": lesson.Verb(
            reduce_scatter, costs.naive_reduce_scatter, "S − c₀ on the root, else S", "n−1 or 1", PAPER
        ),
        "all-gather": lesson.Verb(
            all_gather, costs.naive_all_gather, "(n−1)·S on the root, else cᵣ", "n−1 or 1", PAPER
        ),
        "broadcast": lesson.Verb(
            broadcast, costs.naive_broadcast, "(n−1)·S on the source, else 0", "n−1 or 0", PAPER, rooted=True
        ),
    }
    held = 4 * (elements + 1) if world.rank == ROOT else 0
    both = {
        "full form": (all_reduce, costs.naive_all_reduce_time),
        "small form": (small.all_reduce, costs.naive_all_reduce_time),
    }
    claims = [
        *lesson.traffic(world, groups, "naive", verbs, elements),
        lesson.memory(world, "naive", small.all_reduce, elements + 1, "S on the root, else 0", held, PAPER),
        *lesson.values(world, groups, "naive", verbs),
        *loads(world, elements),
        lesson.times(world, groups, "naive all-reduce", both, elements, "2(n−1)(α + βS)", PAPER, key=True),
    ]

    values = lesson.tensor(world, elements)
    with world.timed(f"naive all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, timeline = lesson.virtual_run(world, all_reduce, elements)
    world.figure(lambda: timeline.draw(f"Naive all-reduce of {4 * elements:,} bytes on {n} ranks"))
    return claims


def loads(world: World, elements: int) -> list[Claim]:
    """Claims on what goes through the root, and through any other rank."""
    ledger = lesson.count(world, all_reduce, elements)
    through = gather_objects(
        ledger.sent + ledger.received
    )  # every rank makes every claim, so all need the root's count
    on = f"naive all-reduce of {elements:,} float32: bytes in and out of "
    load = costs.naive_root_load(elements, 4, world.size)
    root = Claim(on + "the root", "2(n−1) · S", load, through[ROOT], "B", PAPER, key=True)
    if world.size == 1:
        return [root, Claim.needs_ranks(2, on + "any other rank", "2S", PAPER)]
    return [root, Claim(on + "any other rank", "2S", 2 * 4 * elements, max(through[1:]), "B", PAPER)]
