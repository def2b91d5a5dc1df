"""The lesson of `minitrain.collectives.naive`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives import naive as small
from minitrain.collectives.full.naive import ROOT, all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.collectives import common as lesson


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Adds everything on rank 0; the table shows the load on that root, beside bytes, messages, sums and time.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, rank, paper = world.size, world.rank, "Thakur et al. 2005"
    verbs = {
        "all-reduce": (all_reduce, costs.naive_all_reduce, "(n−1)·S on the root, else S", "n−1 on the root, else 1"),
        "reduce-scatter": (reduce_scatter, costs.naive_reduce_scatter, "S − c₀ on the root, else S", "n−1 or 1"),
        "all-gather": (all_gather, costs.naive_all_gather, "(n−1)·S on the root, else cᵣ", "n−1 or 1"),
        "broadcast": (broadcast, costs.naive_broadcast, "(n−1)·S on the source, else 0", "n−1 or 0"),
    }
    size = elements + 1
    predicted = costs.naive_all_reduce(size, 4, n, rank)
    formulas = ("(n−1)·S on the root, else S", "n−1 on the root, else 1")
    held = ("S on the root, else 0", 4 * size if rank == ROOT else 0)
    claims = lesson.small_form(
        world, "naive all-reduce", small.all_reduce, all_reduce, size, predicted, formulas, held, paper
    )
    for name, (verb, cost, *formulas) in verbs.items():
        predicted = cost(elements + 1, 4, n, rank)
        claims += lesson.traffic(
            world, verb, elements + 1, predicted, f"naive {name}", (formulas[0], formulas[1]), paper
        )

    ledger = lesson.count(world, all_reduce, elements)
    loads = gather_objects(ledger.sent + ledger.received)  # every rank makes every claim, so all need the root's count
    on = f"naive all-reduce of {elements:,} float32: bytes in and out of "
    load = costs.naive_root_load(elements, 4, n)
    claims.append(Claim(on + "the root", "2(n−1) · S", load, loads[ROOT], "B", paper, key=True))
    if n > 1:
        claims.append(Claim(on + "any other rank", "2S", 2 * 4 * elements, max(loads[1:]), "B", paper))
    else:
        claims.append(Claim.needs_ranks(2, on + "any other rank", "2S", paper))
    claims += lesson.same_sums(world, all_reduce, "naive all-reduce")
    predicted = costs.naive_all_reduce_time(4 * elements, n, lesson.ALPHA, lesson.BETA)
    claims.append(
        lesson.virtual_time(world, all_reduce, elements, predicted, "naive all-reduce", "2(n−1)(α + βS)", paper)
    )

    values = lesson.tensor(world, elements)
    with world.timed(f"naive all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    _, timeline = lesson.virtual_run(world, all_reduce, elements)
    world.figure(lambda: timeline.draw(f"Naive all-reduce of {4 * elements:,} bytes on {n} ranks"))
    return claims
