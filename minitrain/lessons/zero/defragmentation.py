"""The lesson of `minitrain.zero.defragmentation`: bytes that forward needs, the and the largest gap."""

from __future__ import annotations

import random
from bisect import bisect_left
from contextlib import suppress

from minitrain.comm import World
from minitrain.costs import defragmentation as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.zero.defragmentation import Memory, forward


def demo(world: World) -> list[Claim]:
    """Fills a memory with checkpoints and temporaries in turn; the table shows gaps with a region and without."""
    blocks = 12
    rows = Rows("Rajbhandari et al. 2020, §6.3")
    source = random.Random(40)
    # Temporaries of any size up to 16 checkpoints, as blocks with other sequence lengths or experts have.
    drawn = [source.randint(1, 16 * 64) for _ in range(40)]
    # The worst case: temporaries that grow from block to block, and checkpoints that are larger.
    growing = [100 + 10 * block for block in range(blocks)]
    for case, temporaries, checkpoint in (("growing", growing, 100 + 10 * blocks), ("drawn", drawn, 64)):
        model = temporaries, checkpoint
        with_region, without = (smallest(model, region) for region in (True, False))
        what = "bytes that forward needs, checkpoints in a region, worst case and drawn sizes"
        rows.add(what, "Lc + max Tₖ + c", costs.needed_with_region(*model), with_region, case=case)
        gaps = free(after_forward(model, max(with_region, without), True))
        what = "largest gap after forward over all that is free, checkpoints in a region"
        rows.add(what, "1", 1, max(gaps) / sum(gaps), "1", case=case)
        if temporaries is growing:
            size = costs.needed_at_worst(*model)
            what = "bytes that forward needs without the region, worst case"
            rows.add(what, "Lc + Σ Tₖ", size, without, source="derived")
            memory = after_forward(model, size, False)
            gaps, all_of_it = free(memory), sum(temporaries)
            what = "largest gap after forward over all that is free, without the region, worst case"
            rows.add(what, "max Tₖ / Σ Tₖ", max(temporaries) / all_of_it, max(gaps) / sum(gaps), "1", "derived")
    return rows.claims()


def smallest(model: tuple[list[int], int], region: bool) -> int:
    """The bytes of the smallest memory in which forward finds a gap for each of its tensors, by bisection."""

    def fits(size: int) -> bool:
        try:
            forward(Memory(size), *model, region=region)
        except MemoryError:
            return False
        return True

    return bisect_left(range(10**6), True, key=fits)


def after_forward(model: tuple[list[int], int], size: int, region: bool) -> Memory:
    """A memory of `size` bytes as forward leaves it, or as it is when forward finds no gap."""
    memory = Memory(size)
    with suppress(MemoryError):
        forward(memory, *model, region=region)
    return memory


def free(memory: Memory) -> list[int]:
    """Bytes of each gap."""
    return [size for _, size in memory.gaps()]
