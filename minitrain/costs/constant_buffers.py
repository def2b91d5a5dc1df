"""The cost of sending gradients through a buffer of constant size: its bytes, and how often it is filled.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §3.2 and §6.2. Ψ
elements of all gradients, B elements of the buffer.
"""

from __future__ import annotations


def buffer_bytes(elements: float, size: float | None = None, item_size: int = 4) -> float:
    """Bytes of the buffer: of one with room for B = `size` elements, and of a fused one, which takes all Ψ."""
    return item_size * (elements if size is None else size)


def rounds(elements: int, size: int) -> int:
    """How often the buffer is filled and all-reduced: ⌈Ψ/B⌉."""
    return -(-elements // size)
