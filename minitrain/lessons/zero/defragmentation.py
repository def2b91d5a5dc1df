"""The demo of `defragmentation`: bytes that forward needs, the largest tensor that still fits, and what is refused."""

from __future__ import annotations

import math
import random
from contextlib import suppress

from minitrain.comm import World
from minitrain.costs import defragmentation as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.zero.defragmentation import Memory, forward

PAPER = "Rajbhandari et al. 2020, §6.3"
Case = tuple[list[int], int]  # bytes of each block's temporaries, and of a checkpoint


def growing(blocks: int) -> Case:
    """The worst case: temporaries that grow from block to block, and checkpoints that are larger."""
    return [100 + 10 * block for block in range(blocks)], 100 + 10 * blocks


def drawn(blocks: int) -> Case:
    """Temporaries of any size up to 16 checkpoints, as blocks with other sequence lengths or experts have."""
    source = random.Random(blocks)
    return [source.randint(1, 16 * 64) for _ in range(blocks)], 64


def after_forward(case: Case, size: int, region: bool) -> Memory:
    """A memory of `size` bytes as forward leaves it, or as it is when forward finds no gap."""
    memory = Memory(size)
    with suppress(MemoryError):
        forward(memory, *case, region=region)
    return memory


def free(memory: Memory) -> list[int]:
    """Bytes of each gap."""
    return [size for _, size in memory.gaps()]


def needed(cases: dict[str, Case], worst: dict[str, Case]) -> list[Claim]:
    """Claims on the bytes that forward needs: the end of the highest tensor, in a memory that is large enough."""
    with_region, without = {}, {}
    for name, case in cases.items():
        memory = after_forward(case, 10**6, region=True)
        expected = costs.needed_with_region(*case)
        with_region[name] = Claim("", "Lc + max Tₖ + c", expected, memory.highest, "B", PAPER)
    for name, case in worst.items():
        memory = after_forward(case, 10**6, region=False)
        without[name] = Claim("", "Lc + Σ Tₖ", costs.needed_at_worst(*case), memory.highest, "B", "derived")
    return [
        fold("bytes that forward needs, checkpoints in a region, worst case and drawn sizes", with_region, key=True),
        fold("bytes that forward needs without the region, worst case", without, key=True),
    ]


def largest(cases: dict[str, Case], worst: dict[str, Case]) -> list[Claim]:
    """Claims on the largest tensor that fits after forward, over all that is free."""
    whole, pieces = {}, {}
    for name, case in cases.items():
        # As large as the hungrier of both needs.
        size = max(after_forward(case, 10**6, region=region).highest for region in (True, False))
        found = free(after_forward(case, size, region=True))
        whole[name] = Claim("", "1", 1, max(found) / sum(found), "1", PAPER)
        if name in worst:
            temporaries, _ = case
            found = free(after_forward(case, costs.needed_at_worst(*case), region=False))
            expected = max(temporaries) / sum(temporaries)
            pieces[name] = Claim("", "max Tₖ / Σ Tₖ", expected, max(found) / sum(found), "1", "derived")
    return [
        fold("largest gap after forward over all that is free, checkpoints in a region", whole, key=True),
        fold("largest gap after forward over all that is free, without the region, worst case", pieces, key=True),
    ]


def refused(worst: dict[str, Case]) -> Claim:
    """The claim on how much of memory is free when a tensor is refused, in a memory that forward has just filled."""
    cases = {}
    for name, case in worst.items():
        temporaries, checkpoint = case
        size = costs.needed_at_worst(*case)
        memory, measured = after_forward(case, size, region=False), math.nan
        try:
            memory.allocate(max(temporaries) + 1)
        except MemoryError:
            measured = sum(free(memory)) / size
        cases[name] = Claim("", "Σ Tₖ / (Lc + Σ Tₖ)", sum(temporaries) / size, measured, "1", "derived")
    return fold("share of memory that is free when a tensor finds no gap; the paper saw more than 0.3", cases, key=True)


def demo(world: World, blocks: int = 12) -> list[Claim]:
    """Fills a memory with checkpoints and temporaries in turn; the table shows gaps with a region and without.

    Args:
        blocks: L, blocks of the model.
    """
    worst = {f"{many} blocks, growing": growing(many) for many in (blocks, 2, 40)}
    cases = {**worst, f"{blocks} blocks, drawn": drawn(blocks), "40 blocks, drawn": drawn(40)}
    claims = [*needed(cases, worst), *largest(cases, worst), refused(worst)]
    with world.timed(f"forward of {blocks} blocks on the allocator"):
        after_forward(growing(blocks), 10**6, region=False)
    return claims
