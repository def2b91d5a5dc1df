"""Bounded staleness: how stale a gradient can be, how many steps that gains, and which learning rates remain stable.

n workers; s the steps that one may be ahead of the slowest when it begins another; tᵥ the seconds that a step of worker
v takes, t the slowest's; τ the updates that a gradient is late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def most_stale(workers: int, staleness: int | None) -> float:
    """(n−1)(2s+1): the most updates by others between a worker's pull and its push; infinite without a bound.

    At clock c no other is below c − s, nor ends a step above c + s + 1, until the push (from Ho et al. 2013, §2).
    """
    if workers == 1:
        return 0
    return math.inf if staleness is None else (workers - 1) * (2 * staleness + 1)


def steps_until(seconds: float, times: Sequence[float], staleness: int | None) -> int:
    """Σ min(⌊T/tᵥ⌋, ⌊(T − tᵥ)/t⌋ + s + 1): steps that all workers have finished after T seconds, without messages.

    Step k waits for the slowest's step k − 1 − s, at (k − 1 − s) t, and so ends at max(k tᵥ, (k − 1 − s) t + tᵥ).
    Without a bound (`staleness` None) it is Σ ⌊T/tᵥ⌋.
    """
    if staleness is None:
        return sum(int(seconds // own) for own in times)
    return sum(int(min(seconds // own, (seconds - own) // max(times) + staleness + 1)) for own in times)


def largest_rate(curvature: float, delay: int) -> float:
    """2/λ · sin(π / (2(2τ+1))): gradient descent on λx²/2 converges below this learning rate, and diverges above.

    x ← x − η λ x', x' being τ updates old, is stable if and only if 0 < ηλ < 2 cos(τπ/(2τ+1)), which is the same (Levin
    & May 1976, "A note on difference-delay equations"). `delay`: τ.
    """
    return 2 / curvature * math.sin(math.pi / (2 * (2 * delay + 1)))


def missed_updates(frequencies: Sequence[float], batch: int, ranks: int, staleness: int, steps: int) -> float:
    """s (1 − (1−p)^D): updates that a fetched row misses, D ids being drawn in a step by all ranks; the mean over ids.

    An id counts as often as it is fetched, with 1 − (1−p)^batch by each rank. The first s steps miss fewer.
    """
    lag = sum(min(step, staleness) for step in range(steps)) / steps
    fetched = [1 - (1 - p) ** batch for p in frequencies]
    updated = [1 - (1 - p) ** (batch * ranks) for p in frequencies]
    return lag * sum(a * b for a, b in zip(fetched, updated, strict=True)) / sum(fetched)


def hybrid_seconds(
    steps: int, staleness: int, compute: float, reduce: float, fetch: float, push: float
) -> tuple[str, float]:
    """Formula and time of T steps, of which each computes for C, all-reduces for R, fetches for F and pushes for P.

    With s = 0, rows are fetched after the last step's push, during its all-reduce. With s > 0 they are there in time.
    """
    if staleness == 0:
        seconds = fetch + steps * compute + (steps - 1) * max(reduce, push + fetch) + reduce
        return "F + T C + (T−1) max(R, F + P) + R", seconds
    assert fetch + push <= compute + reduce, "the table's links set the pace"
    return "F + T (C + R)", fetch + steps * (compute + reduce)
