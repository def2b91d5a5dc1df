"""What fewer bits cost and lose: updates that vanish, sums that stop, gradients that flush to zero, bytes.

m bits of mantissa, e of exponent; a number of the format is ±1.m · 2^exponent. Rounding is to the nearest, and of two
equally near to the one whose last bit is 0.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs.communication import chunk_size


class States(NamedTuple):
    """Bytes per parameter, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return sum(self)


# Adam has two states. The optimizer's bytes include the float32 copy of the parameters, where there is one.
STATES = {
    "float32": States(4, 4, 8),
    "16 bits, as ZeRO counts": States(2, 2, 4 + 8),
    "16 bits, float32 gradients, as Megatron-LM": States(2, 4, 4 + 8),
    "16 bits, 8-bit Adam": States(2, 2, 4 + 2),
}


def always_lost_below(mantissa: int) -> float:
    """2^−(m+2) of a weight, which is less than twice its power of two; half of its spacing is 2^−(m+1) of that power.

    For float16, Micikevicius et al. 2018, §3.1, have a ratio of 2048 = 2¹¹.
    """
    return 2.0 ** -(mantissa + 2)


def never_lost_above(mantissa: int) -> float:
    """2^−(m+1) of a weight, which is at least half of the spacing."""
    return 2.0 ** -(mantissa + 1)


def lost(ratio: float, mantissa: int) -> int:
    """Of the 2^m significands 1 + k/2^m, how many stay as they are when `ratio` times themselves is added.

    Those with (1 + k/2^m) · ratio < 2^−(m+1), or equal to it and with an even k.
    """
    half, count = never_lost_above(mantissa), 2**mantissa
    changes = [(1 + k / count) * ratio for k in range(count)]
    return sum(change < half or (change == half and k % 2 == 0) for k, change in enumerate(changes))


def sum_stops_at(mantissa: int) -> int:
    """2^(m+1): there neighbors are 2 apart, so adding 1 is a tie, which goes back to the even number."""
    return 2 ** (mantissa + 1)


def flushed_below(exponent: int, mantissa: int) -> float:
    """Half of the smallest number: what is at most as large becomes 0. 2^−25 in float16."""
    return 2.0 ** (2 - 2 ** (exponent - 1) - mantissa - 1)


def quantized_bytes(elements: int, block: int = 256) -> int:
    """One byte for each element, and a float32 for each block."""
    return elements + 4 * -(-elements // block)


def quantized_ring(elements: int, ranks: int, rank: int, block: int = 256) -> int:
    """About 2(n−1)/n · (1 + 4/block) bytes per element: what a rank sends in an all-reduce, exactly from its chunks."""
    sizes = [quantized_bytes(chunk_size(elements, ranks, number), block) for number in range(ranks)]
    return 2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % ranks]
