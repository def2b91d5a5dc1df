"""Bounded staleness: how stale a gradient can be, how many steps that gains, and which learning rates remain stable.

Notation: n workers; s the steps that one may be ahead of the slowest when it begins another; tᵥ the seconds that a step
of worker v takes, t the slowest's; τ the updates that a gradient is late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def most_stale(workers: int, staleness: int | None) -> float:
    """(n−1)(2s+1): the most updates by others between a worker's pull and its push; infinite without a bound.

    A worker pulls at clock c, when no clock is below c − s. Until it pushes, its own clock stays at c, so no other
    begins a step with a clock above c + s, or ends one with a clock above c + s + 1. Each of the n−1 others thus makes
    at most (c + s + 1) − (c − s) = 2s + 1 updates (from the rule of Ho et al. 2013, §2).
    """
    if workers == 1:
        return 0
    return math.inf if staleness is None else (workers - 1) * (2 * staleness + 1)


def steps_until(seconds: float, times: Sequence[float], staleness: int | None) -> int:
    """Steps that all workers together have finished after `seconds`, if messages take no time.

    A worker may begin its k-th step when its own previous step is over, and when the slowest has finished k − 1 − s,
    which is at (k − 1 − s) t. Since t ≥ tᵥ, of these waits only the last counts, and step k ends at max(k tᵥ, (k − 1 −
    s) t + tᵥ). So by T a worker has finished min(⌊T/tᵥ⌋, ⌊(T − tᵥ)/t⌋ + s + 1) steps. s = 0 gives each as many as the
    slowest has; s > 0 gives up to s more, but no higher rate; only without a bound does each go at its own.

    Args:
        seconds: T.
        times: tᵥ of each worker.
        staleness: s; None for no bound.
    """
    if staleness is None:
        return sum(int(seconds // own) for own in times)
    return sum(int(min(seconds // own, (seconds - own) // max(times) + staleness + 1)) for own in times)


def largest_rate(curvature: float, delay: int) -> float:
    """2/λ · sin(π / (2(2τ+1))): gradient descent on λx²/2 converges below this learning rate, and diverges above.

    The descent x ← x − η λ x' with x' the value τ updates ago is a linear difference equation with a delay; it is
    stable if and only if 0 < ηλ < 2 cos(τπ/(2τ+1)), which is the same (Levin & May 1976, "A note on difference-delay
    equations"). Without delay this is the well-known 2/λ; with a large one about π/(2τλ).

    Args:
        curvature: λ > 0.
        delay: τ, 0 for none.
    """
    return 2 / curvature * math.sin(math.pi / (2 * (2 * delay + 1)))


def bytes_served(pulls: int, pushes: int, trained: int, other: int, workers: int) -> tuple[int, int]:
    """Bytes that the server sends and receives: parameters for each pull, gradients of the same size for each push.

    Args:
        pulls: Pulls that were answered.
        pushes: Gradients that arrived.
        trained: Bytes of the parameters that are trained.
        other: Bytes of frozen parameters and buffers, which come with each worker's first pull only.
        workers: Number of workers.
    """
    return pulls * trained + workers * other, pushes * trained
