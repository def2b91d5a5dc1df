"""What an optimizer keeps for the parameters it steps, in bytes, and what a step sends where layers are divided.

r × c, a matrix; E, the elements of a tensor; w (`item`), bytes of a number, 4 for float32. A weight in 32 bits and its
gradient take 8 bytes per parameter; the states are in addition to those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Shape = Sequence[int]


def adam(shape: Shape, item: int = 4) -> int:
    """2wE: both moments (Kingma & Ba 2015, algorithm 1; bytes as in Rajbhandari et al. 2020, §3.1)."""
    return 2 * item * math.prod(shape)


def adafactor(shape: Shape, item: int = 4) -> int:
    """w(r + c) for a matrix; wE for anything else (Shazeer & Stern 2018, §3 and algorithms 4 and 5)."""
    return item * (sum(shape) if len(shape) == 2 else math.prod(shape))


def sm3(shape: Shape, item: int = 4) -> int:
    """w times the sum of all dimensions: w(r + c) for a matrix, wE for a vector (Anil et al. 2019, slices as sets)."""
    return item * sum(shape)


def lars(shape: Shape, item: int = 4) -> int:
    """wE: the momentum (You et al. 2017, algorithm 1)."""
    return item * math.prod(shape)


def lamb(shape: Shape, item: int = 4) -> int:
    """2wE: Adam's moments (You et al. 2020, algorithm 2)."""
    return 2 * item * math.prod(shape)


def adam8bit(shape: Shape, block: int = 2048) -> int:
    """2(E + 4⌈E/B⌉): a byte per element and a float32 scale per `block` of B, twice (Dettmers et al. 2021, §2)."""
    elements = math.prod(shape)
    return 2 * (elements + 4 * math.ceil(elements / block))


TABLES_8BIT = 2 * 256 * 4
"""Bytes of the values that 8-bit states choose from, signed and unsigned, in float32; once for all tensors."""


def muon(shape: Shape, item: int = 4) -> int:
    """wE: the momentum (Jordan et al. 2024)."""
    return item * math.prod(shape)


def per_parameter(shapes: Sequence[Shape]) -> dict[str, float]:
    """Bytes of states per parameter of a model with these tensors, by optimizer; Muon steps matrices, Adam the rest."""
    elements = sum(map(math.prod, shapes))
    held = {
        "Adam": sum(map(adam, shapes)),
        "LAMB": sum(map(lamb, shapes)),
        "LARS": sum(map(lars, shapes)),
        "Muon": sum(muon(shape) if len(shape) == 2 else adam(shape) for shape in shapes),
        "8-bit Adam": sum(map(adam8bit, shapes)) + TABLES_8BIT,
        "Adafactor": sum(map(adafactor, shapes)),
        "SM3": sum(map(sm3, shapes)),
    }
    return {name: each / elements for name, each in held.items()}


def largest_rounding(signed: bool) -> float:
    """0.9 / 2⁷ or 0.9 / 2⁸ of a block's largest number: half a spacing, the most that its 8-bit value is off.

    From 0.1 to 1 there are 6 bits of fraction with a sign, 7 without (Dettmers et al. 2021, §2 and figure 1).
    """
    return 0.9 / 2 ** (7 if signed else 8)


class Traffic(NamedTuple):
    """Payloads of the collectives of a step under ZeRO-1, in bytes."""

    reduce_scatter: int
    all_gather: int
    all_reduce: int


def zero1_traffic(elements: Sequence[int], ranks: int, norms: int = 0, item: int = 4) -> Traffic:
    """2Ψ, padded to a multiple of n ranks (Rajbhandari et al. 2020, §7.2.1), and `norms` numbers for each layer.

    These are sums of squares, two for LARS and LAMB (You et al. 2017, 2020). `elements` are those of each layer.
    """
    padded = item * ranks * math.ceil(sum(elements) / ranks)
    return Traffic(padded, padded, norms * item * len(elements))


def norms_payload(shapes: Sequence[Shape], item: int = 4) -> int:
    """2w for each layer: two sums of squares, for LARS and LAMB under any stage of ZeRO (You et al. 2017, 2020)."""
    return 2 * item * len(shapes)


def adafactor_payload(shapes: Sequence[Shape], item: int = 4) -> int:
    """w(r + c + 2) for each matrix and w(E + 2) for any other tensor, in two all-reduces under any stage of ZeRO.

    First the sums of squares over rows and columns (or a vector's squares), and of the parameters; then that of the
    updates, which depend on them (Shazeer & Stern 2018, algorithms 4 and 5).
    """
    return sum(adafactor(shape, item) + 2 * item for shape in shapes)


def muon_payload(lines: Sequence[int], ranks: int, item: int = 2) -> int:
    """An all-gather of each padded flat buffer of matrices in Newton–Schulz's format (after Liu et al. 2025, §2.3)."""
    return sum(item * ranks * math.ceil(elements / ranks) for elements in lines)


def scaled_variance(times: float, rate: float) -> float:
    """α²/k: variance of a step of SGD with a batch k `times` and a learning rate α times as large (Krizhevsky 2014)."""
    return rate**2 / times


def newton_schulz(singular_value: float, steps: int = 5) -> float:
    """A singular value σ of a matrix of norm 1 after some steps of σ ← aσ + bσ³ + cσ⁵ (Jordan et al. 2024)."""
    for _ in range(steps):
        singular_value = 3.4445 * singular_value - 4.7750 * singular_value**3 + 2.0315 * singular_value**5
    return singular_value


def newton_schulz_flops(rows: int, columns: int, steps: int = 5) -> int:
    """4r²c + 2r³ per step for r ≤ c: XXᵀ, its square, and the product with X (Jordan et al. 2024, runtime analysis)."""
    small, large = sorted((rows, columns))
    return steps * (4 * small**2 * large + 2 * small**3)
