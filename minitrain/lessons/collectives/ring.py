"""The lesson of `minitrain.collectives.ring`: what its demo claims, and how that is measured.

The paper cuts an all-reduce into a reduce-scatter and an all-gather. It has no broadcast: in ours, n chunks follow each
other over n−1 links, the first chunk takes n−1 steps, and each of the others comes one step later.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from minitrain.collectives import all_to_all
from minitrain.collectives import ring as small
from minitrain.collectives.full import halving, naive, ring, tree
from minitrain.collectives.full.ring import all_gather, all_reduce, broadcast, reduce_scatter
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Group, rank_and_size
from minitrain.costs import communication as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.collectives import common as lesson

PAPER = "Patarasuk & Yuan 2009"
NCCL_TESTS = "nccl-tests, doc/PERFORMANCE.md"


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Runs the ring; the table shows bytes and messages, equality with torch's sum, and time on the virtual clock.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    lesson.something_to_send(elements)
    n, groups = world.size, lesson.groups_of(world)
    verbs = {
        "all-reduce": lesson.Verb(
            all_reduce, costs.ring_all_reduce, "2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · S", "2(n−1)", PAPER, small.all_reduce
        ),
        "reduce-scatter": lesson.Verb(
            reduce_scatter, costs.ring_reduce_scatter, "S − cᵣ", "n−1", PAPER, small.reduce_scatter
        ),
        "all-gather": lesson.Verb(all_gather, costs.ring_all_gather, "S − cᵣ₊₁", "n−1", PAPER, small.all_gather),
        "broadcast": lesson.Verb(
            broadcast, costs.ring_broadcast, "S; 0 just before the source", "n or 0", "derived", rooted=True
        ),
    }
    held = 4 * costs.chunk_size(elements + 1, n, 0)
    formula = "c₀ = ⌈elements/n⌉ · 4 B"
    twice = {
        "all-reduce": (all_reduce, costs.ring_all_reduce_time),
        "small form": (small.all_reduce, costs.ring_all_reduce_time),
        "broadcast": (broadcast, costs.ring_broadcast_time),
    }
    once = {
        "reduce-scatter": (reduce_scatter, costs.ring_reduce_scatter_time),
        "all-gather": (all_gather, costs.ring_reduce_scatter_time),
    }
    whole, half = "2(n−1)(α + βS/n)", "(n−1)(α + βS/n)"
    claims = [
        *lesson.traffic(world, groups, "ring", verbs, elements),
        lesson.memory(world, "ring", small.all_reduce, elements + 1, formula, held, PAPER),
        *lesson.values(world, groups, "ring", verbs),
        lesson.times(world, groups, "ring all-reduce, and broadcast", twice, elements, whole, PAPER, key=True),
        lesson.times(world, groups, "ring reduce-scatter, and all-gather", once, elements, half, PAPER),
        bus_time(world, groups),
        least(world),
    ]

    values = lesson.tensor(world, elements)
    with world.timed(f"ring all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        all_reduce(values, check=False).wait()
    even = -(-elements // n) * n  # rounded up, so that all chunks take the same time
    _, timeline = lesson.virtual_run(world, all_reduce, even)
    world.figure(lambda: timeline.draw(f"Ring all-reduce of {4 * even:,} bytes on {n} ranks"))
    return claims


def bus_time(world: World, groups: Mapping[str, Group]) -> Claim:
    """The claim that without latency a verb takes what its bus bandwidth says: then it is that of the links, 1/β."""

    def exchange(values: Tensor, group: Group) -> Tensor:
        rows = [len(values) // rank_and_size(group)[1]] * rank_and_size(group)[1]
        arriving = torch.empty_like(values)
        all_to_all.pairwise(arriving, values, rows, rows, group)
        return arriving

    verbs = {
        "all_reduce": all_reduce,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
        "all_to_all": exchange,
    }
    cases = {}
    for where, group in groups.items():
        size = 4 * 1024 * rank_and_size(group)[1]
        for name, verb in verbs.items():
            start = partial(verb, group=group)
            seconds, _ = lesson.virtual_run(world, start, size // 4, alpha=0.0, group=group)
            predicted = costs.bus_bandwidth(size, 1 / lesson.BETA, rank_and_size(group)[1], name)
            formula = "βS times 2(n−1)/n, and (n−1)/n of the others"
            cases[f"{name} on {where}"] = Claim(
                "", formula, predicted, seconds, "virtual s", NCCL_TESTS, how="virtual clock"
            )
    what = "all-reduce, reduce-scatter, all-gather and all-to-all without latency: time at the links' bandwidth 1/β"
    return fold(what, cases, key=True)


def least(world: World) -> Claim:
    """The claim that of four algorithms none lets its busiest rank send fewer bytes than the ring."""
    elements = 12 * world.size  # all chunks of one size
    busiest = {}
    for algorithm in (naive, ring, tree, halving):
        ledger = lesson.count(world, algorithm.all_reduce, elements)
        busiest[algorithm] = max(gather_objects(ledger.sent))
    predicted = costs.busiest(costs.ring_all_reduce, elements, 4, world.size).bytes
    what = "all-reduce of 12n float32: bytes sent by the busiest rank, the least of four algorithms"
    return Claim(what, "2(n−1)/n · S", predicted, min(busiest.values()), "B", PAPER)
