"""The lesson of `minitrain.zero.defragmentation`: bytes that forward needs, with a region and without."""

from __future__ import annotations

from bisect import bisect_left

from minitrain.comm import World
from minitrain.costs import defragmentation as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.zero.defragmentation import Memory, forward

# The worst case: temporaries that grow from block to block, and checkpoints that are larger.
TEMPORARIES, CHECKPOINT = [100 + 10 * block for block in range(12)], 220


def demo(world: World) -> list[Claim]:
    """Fills a memory with checkpoints and temporaries in turn; the table shows the smallest memory that does."""
    rows = Rows("Rajbhandari et al. 2020, §6.3")
    predicted = costs.needed_with_region(TEMPORARIES, CHECKPOINT)
    rows.add("bytes that forward needs, checkpoints in a region", "Lc + max Tₖ + c", predicted, smallest(True))
    predicted = costs.needed_at_worst(TEMPORARIES, CHECKPOINT)
    what = "bytes that forward needs without the region, worst case"
    rows.add(what, "Lc + Σ Tₖ", predicted, smallest(False), source="derived")
    return rows.claims()


def smallest(region: bool) -> int:
    """The bytes of the smallest memory in which forward finds a gap for each of its tensors, by bisection."""

    def fits(size: int) -> bool:
        try:
            forward(Memory(size), TEMPORARIES, CHECKPOINT, region)
        except MemoryError:
            return False
        return True

    return bisect_left(range(10**6), True, key=fits)
