"""The cost of partitioned activation checkpoints: bytes kept, and what gathering them again sends.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §6.1 and §8. L blocks,
b batch, s sequence, h hidden, t tensor-parallel ranks, w bytes of an element.
"""

from __future__ import annotations

from minitrain.costs.communication import Traffic, ring_all_gather


def part(elements: int, ranks: int) -> int:
    """Elements of a checkpoint that a rank keeps, padding included: ⌈bsh/t⌉."""
    return -(-elements // ranks)


def kept(layers: int, batch: int, sequence: int, hidden: int, ranks: int = 1, item_size: int = 2) -> int:
    """L · w⌈bsh/t⌉: bytes of checkpoints on each rank, one for each block; on the host as many with P_a+cpu (§6.1)."""
    return layers * item_size * part(batch * sequence * hidden, ranks)


def gathers(layers: int, elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """What a rank sends in a step so that each block's input is whole again: L all-gathers of bsh elements.

    A recomputed block sends six all-reduces, which are two all-gathers each: this is a twelfth of them (§8).
    """
    return layers * ring_all_gather(ranks * part(elements, ranks), item_size, ranks, rank)
