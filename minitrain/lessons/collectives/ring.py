"""The lesson of `minitrain.collectives.ring`: bytes, memory, sums and time."""

from __future__ import annotations

from minitrain.collectives import ring
from minitrain.comm import Peak, World
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

    lesson.show(world, "ring", ring.all_reduce, elements)
    return rows.claims()
