"""The cost of checkpoints: operations of a save, stalls, memory, samples taken wrongly, and the best interval.

Notation: S bytes of state on a rank, F files; seconds: δ for a save, M from failure to failure on average, R for a
restart, τ of work between two saves (without the save's own time, as in Daly 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


def lost_in_place(files: int) -> int:
    """4F + 2 of these moments leave nothing where the F files and the manifest of the only checkpoint are overwritten.

    They are before 3F + 1 operations and within F + 1 writes, from the first truncation to the last write.
    """
    return 3 * files + 1 + files + 1


def asynchronous_stall(saves: int, copy: float, write: float, work: float) -> float:
    """k·c + (k − 1)·max(0, w − τ): k copies of c seconds, and what remains of writes of w seconds after work of τ."""
    return saves * copy + (saves - 1) * max(0.0, write - work)


def flash_memory(size: int) -> int:
    """4S + 64 bytes of shared memory: two slots, each with two shards, and four numbers of 8 bytes at its head."""
    return 2 * (2 * size + 4 * 8)


def flash_stall(size: int, copy: float, alpha: float, beta: float, ranks: int) -> float:
    """cS + (α + βS) seconds: a copy of c seconds per byte, the exchange with the peers; a single rank copies twice."""
    return copy * size + (alpha + beta * size if ranks > 1 else copy * size)


class Wrong(NamedTuple):
    """Samples that are not taken exactly once."""

    repeated: int
    lost: int


def per_rank_sampler(stages: Sequence[tuple[int, int]]) -> Wrong:
    """(n − n')·c samples repeated or lost from n' ranks to n, by a sampler per rank that knows only its own c samples.

    `stages`: (ranks, steps) of each, one sample per rank and step.
    """
    repeated = lost = taken = position = 0
    for ranks, steps in stages:
        begin = ranks * taken
        repeated, lost = repeated + max(0, position - begin), lost + max(0, begin - position)
        taken += steps
        position = ranks * taken
    return Wrong(repeated, lost)


def goodput(interval: float, saving: float, restart: float, mean: float) -> float:
    """τ / (M e^{R/M} (e^{(τ+δ)/M} − 1)), work that is kept per second (Daly 2006, turned round)."""
    return interval / (mean * math.exp(restart / mean) * math.expm1((interval + saving) / mean))


def optimum(saving: float, mean: float) -> float:
    """The τ of the highest goodput: the root of e^{(τ+δ)/M} (1 − τ/M) = 1, by bisection (derived from `goodput`)."""
    low, high = 0.0, mean
    for _ in range(200):
        middle = (low + high) / 2
        left = (middle + saving) / mean + math.log1p(-middle / mean) if middle < mean else -1.0
        low, high = (middle, high) if left > 0 else (low, middle)
    return low


def young_error(saving: float, mean: float) -> float:
    """At most M s²/3 between Young's interval and the optimum, with s = √(2δ/M) (derived, see `daly_error`)."""
    return mean * (2 * saving / mean) / 3


def daly_error(saving: float, mean: float) -> float:
    """About M s⁴/270 between Daly's interval and the optimum, with s = √(2δ/M).

    With t = τ/M the optimum solves −ln(1 − t) − t = s²/2, so that t = s − s²/3 + s³/36 + s⁴/270 + … Young's interval
    has the first term, Daly's the first three.
    """
    return mean * (2 * saving / mean) ** 2 / 270


def goodput_noise(interval: float, saving: float, restart: float, mean: float, failures: int) -> float:
    """Standard deviation of a simulated goodput over so many failures, to first order in 1/failures.

    Goodput g is Σkept / Σtime over independent spans; it varies as the mean of kept − g·time, over M. Saves per span
    are geometric: P(kept ≥ kτ) = a·qᵏ⁻¹, a = e^{−(R+τ+δ)/M}, q = e^{−(τ+δ)/M}.
    """
    q = math.exp(-(interval + saving) / mean)
    first = math.exp(-restart / mean)
    g = goodput(interval, saving, restart, mean)
    kept = first * q / (1 - q)  # mean number of saves between two failures
    squares = first * q * (1 + q) / (1 - q) ** 2
    # E[N·X] = Σₖ E[X; X ≥ R + k(τ+δ)], and beyond x an exponential has the mean x + M.
    cross = sum(
        first * q**k * (restart + k * (interval + saving) + mean)
        for k in range(1, 1 + math.ceil(60 * mean / (interval + saving)))
    )
    second = interval**2 * squares - 2 * g * interval * cross + g**2 * 2 * mean**2
    center = interval * kept - g * mean
    return math.sqrt(max(0.0, second - center**2) / failures) / mean
