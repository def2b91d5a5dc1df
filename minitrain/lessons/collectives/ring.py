"""The lesson of `minitrain.collectives.ring`: bytes, memory, sums and time; and what bus bandwidth means.

The paper cuts an all-reduce into a reduce-scatter and an all-gather. nccl-tests divides the bytes of a verb by its
time, with a factor for each verb, so that a verb without latency shows the bandwidth of the links.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.collectives import all_to_all, ring
from minitrain.comm import Peak, World
from minitrain.comm.messages import Group, rank_and_size
from minitrain.costs import communication as costs
from minitrain.lessons.collectives import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World, elements: int = 1 << 20) -> list[Claim]:
    """Runs the ring; the table shows bytes, memory, equality with torch's sum, and time on the virtual clock.

    Args:
        elements: Number of float32 elements (4 bytes each) in the tensor.
    """
    rows, groups = Rows("Patarasuk & Yuan 2009"), lesson.groups_of(world)
    sent = "2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · S", costs.ring_all_reduce
    time = "2(n−1)(α + βS/n)", costs.ring_all_reduce_time
    lesson.all_reduces(world, rows, "ring", ring, "all_reduce reduce_scatter all_gather", elements, sent, time, groups)

    values, held = lesson.tensor(world, elements + 1), 4 * costs.chunk_size(elements + 1, world.size, 0)
    with Peak(world.device) as peak:
        ring.all_reduce(values)
    what = f"ring all-reduce of {elements + 1:,} float32: most bytes held next to the tensor"
    blocks = 512 if world.device.type == "cuda" else 0  # a GPU's allocator hands out blocks of 512 bytes
    rows.add(what, "c₀ = ⌈elements/n⌉ · 4 B", held, peak.bytes, absolute=blocks)

    verbs = {verb.__name__: verb for verb in (ring.all_reduce, ring.reduce_scatter, ring.all_gather)}
    what = "all-reduce, reduce-scatter, all-gather and all-to-all without latency: time at the links' bandwidth 1/β"
    formula, source = "βS times 2(n−1)/n, and (n−1)/n of the others", "nccl-tests, doc/PERFORMANCE.md"
    for where, group in groups.items():
        ranks = rank_and_size(group)[1]
        size = 4 * 1024 * ranks
        for name, verb in {**verbs, "all_to_all": swap_rows}.items():
            seconds, _ = lesson.virtual_run(world, partial(verb, group=group), size // 4, alpha=0.0, group=group)
            predicted = costs.bus_bandwidth(size, 1 / lesson.BETA, ranks, name)
            rows.time(what, formula, predicted, seconds, source, case=f"{name} on {where}")

    lesson.show(world, "ring", ring.all_reduce, elements)
    return rows.claims()


def swap_rows(values: Tensor, group: Group) -> Tensor:
    """An all-to-all of equal parts."""
    ranks = rank_and_size(group)[1]
    parts, arriving = [len(values) // ranks] * ranks, torch.empty_like(values)
    all_to_all.pairwise(arriving, values, parts, parts, group)
    return arriving
