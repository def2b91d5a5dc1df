"""The cost of sending gradients through a buffer of constant size: its bytes, its messages, and their time.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §3.2 and §6.2. Ψ
elements of all gradients, B elements of the buffer, n ranks, α and β of a message's time.
"""

from __future__ import annotations

from minitrain.costs.communication import ring_all_reduce_time


def buffer_bytes(elements: float, size: float | None = None, item_size: int = 4) -> float:
    """Bytes of the buffer: of one with room for B = `size` elements, and of a fused one, which takes all Ψ."""
    return item_size * (elements if size is None else size)


def rounds(elements: int, size: int) -> int:
    """How often the buffer is filled and all-reduced: ⌈Ψ/B⌉."""
    return -(-elements // size)


def time(elements: int, size: int, ranks: int, alpha: float, beta: float, item_size: int = 4) -> float:
    """Seconds of all rounds through rings, one after the other: about ⌈Ψ/B⌉ · 2(n−1)α + 2(n−1)/n · βwΨ."""
    full, rest = divmod(elements, size)
    seconds = full * ring_all_reduce_time(item_size * size, ranks, alpha, beta)
    return seconds + (ring_all_reduce_time(item_size * rest, ranks, alpha, beta) if rest else 0.0)
