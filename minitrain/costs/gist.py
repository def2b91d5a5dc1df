"""The bytes of activations that are encoded between forward and backward.

Jain et al. 2018, "Gist: efficient data encoding for deep neural network training".
"""

from __future__ import annotations


def sign_bytes(elements: int) -> int:
    """Bytes of a ReLU's output of which 1 bit per element is kept, ⌈N/8⌉: whether it is above 0."""
    return -(-elements // 8)


def argmax_bytes(outputs: int) -> int:
    """Bytes of where a pool found its largest inputs, 4 bits per output, ⌈M/2⌉: enough for windows of up to 4 × 4."""
    return -(-outputs // 2)


def sparse_bytes(rows: int, nonzero: int, index: int = 1, item: int = 4) -> int:
    """(item + index) · Z + 4(rows + 1): bytes of Z values, their columns' numbers, and where each row begins."""
    return (item + index) * nonzero + 4 * (rows + 1)


def break_even(index: int, item: int = 4) -> float:
    """index / (item + index): the part of zeros above which sparse rows are smaller than dense ones.

    From (item + index)(1 − σ)N = item · N, leaving out where rows begin: 50 % for an index of 4 bytes, 20 % for 1.
    """
    return index / (item + index)


def stash_bytes(elements: int, bits: int) -> int:
    """Bytes of values that are kept in 16, 10 or 8 bits: 2N, 4⌈N/3⌉, since 3 values fit a word of 4 bytes, or N."""
    sizes = {16: 2 * elements, 10: 4 * -(-elements // 3), 8: elements}
    if bits not in sizes:
        raise ValueError(f"bits={bits} must be one of {', '.join(map(str, sizes))}")
    return sizes[bits]


def rounding(bits: int) -> float:
    """The largest relative error of a value in 16, 10 or 8 bits, half of its last bit: 2⁻¹¹, 2⁻⁵ or 2⁻⁴."""
    return 2.0 ** -({16: 10, 10: 4, 8: 3}[bits] + 1)


def relu_pool_bytes(elements: int, outputs: int) -> int:
    """Bytes that torch keeps of a ReLU and a pool, 4N + 8M: the ReLU's output once, and an index for each window."""
    return 4 * elements + 8 * outputs
