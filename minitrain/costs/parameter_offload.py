"""The cost of parameters outside the device: bytes that cross in a step, and what the device holds at once.

Rajbhandari et al. 2021, "ZeRO-Infinity", §4 to §6, for ranks that fetch 1/n each and gather the rest. Ψ parameters, n
ranks, L blocks, A micro-batches in a step, w bytes of a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitrain.costs.zero import Line, shard_elements


def held_outside(lines: Sequence[Line], ranks: int) -> int:
    """Bytes of parameters that a rank keeps on the host or on disk: Σ ws, with shards of s = ⌈E/n⌉ elements."""
    return sum(line.item_size * shard_elements(line.elements, ranks) for line in lines)


def crossing(lines: Sequence[Line], ranks: int, micro_batches: int = 1) -> tuple[int, int]:
    """2A · Σ ws bytes of parameters into a rank's device in a step, and A · Σ ws of gradients out (§6.1)."""
    once = held_outside(lines, ranks)
    return 2 * micro_batches * once, micro_batches * once


def whole_at_once(lines: Sequence[Line], ranks: int) -> int:
    """Most bytes of whole parameters on the device: the largest two blocks that follow each other, padding included."""
    sizes = [ranks * line.item_size * shard_elements(line.elements, ranks) for line in lines]
    return max((a + b for a, b in zip(sizes, sizes[1:], strict=False)), default=sum(sizes))


def fetched_ahead(blocks: int, micro_batches: int = 1) -> int:
    """Fetches in a step that another block's work can hide: 2A(L − 1), all but the first of each pass."""
    return 2 * micro_batches * (blocks - 1)
