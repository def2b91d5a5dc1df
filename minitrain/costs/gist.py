"""The bytes of activations that are encoded between forward and backward.

Source: Jain et al. 2018, "Gist: efficient data encoding for deep neural network training", §4.
"""

from __future__ import annotations

PACKED = {16: 2, 10: 3, 8: 4}
"""Width in bits -> values in a word of 4 bytes; with 10 bits, 2 of the 32 are left."""


def sign_bytes(elements: int) -> int:
    """Bytes of a ReLU's output of which 1 bit per element is kept, ⌈N/8⌉: whether it is above 0."""
    return -(-elements // 8)


def argmax_bytes(outputs: int) -> int:
    """Bytes of where a pool found its largest inputs, 4 bits per output, ⌈M/2⌉: enough for windows of up to 4 × 4."""
    return -(-outputs // 2)


def sparse_bytes(rows: int, nonzero: int, index: int = 1, item: int = 4) -> int:
    """Bytes of compressed sparse rows, (item + index) · Z + 4(rows + 1): values, their columns, and where rows begin.

    Args:
        rows: Rows, of at most 256 columns where an index has 1 byte.
        nonzero: Elements that are not zero, Z.
        index: Bytes of a column's number.
        item: Bytes of a value.
    """
    return (item + index) * nonzero + 4 * (rows + 1)


def break_even(index: int, item: int = 4) -> float:
    """The part of zeros above which sparse rows are smaller than dense ones, index / (item + index).

    Of N elements, N(1 − σ) are not zero; (item + index)(1 − σ)N = item · N. Where rows begin is left out. For values of
    4 bytes: 50 % with indices of 4 bytes, 20 % with 1.
    """
    return index / (item + index)


def stash_bytes(elements: int, bits: int) -> int:
    """Bytes of values that are kept in 16, 10 or 8 bits: words of 4 bytes, with 2, 3 or 4 values in each.

    Raises:
        ValueError: For any other width.
    """
    if bits not in PACKED:
        raise ValueError(f"bits={bits} must be one of {', '.join(map(str, PACKED))}")
    return 4 * -(-elements // PACKED[bits])
