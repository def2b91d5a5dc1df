"""The cost of a pipeline: the time its ranks idle, the micro-batches they hold, and the bytes between stages.

p ranks, m micro-batches, v chunks (stages of a rank), r the rank. F (`forward`), I (`backward`) and W (`weight`) are a
rank's times for one micro-batch over all its chunks: forward, backward for the input, for the weights; a whole backward
is B = I + W. Stages are equal, messages take no time. Results from `Fraction`s are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from minitrain.costs.communication import NOTHING, Traffic, one

Time = float | Fraction


# ---- bubbles ----


def ideal_time(microbatches: int, forward: Time, backward: Time, weight: Time = 0) -> Time:
    """m(F+I+W): the work of a rank in a step."""
    return microbatches * (forward + backward + weight)


def bubble(ranks: int, forward: Time, backward: Time, weight: Time = 0, chunks: int = 1) -> Time:
    """(p−1)(F+I+W)/v: GPipe and 1F1B for v = 1, interleaved where p divides m (Narayanan et al. 2021, §2.2)."""
    return Fraction(ranks - 1, chunks) * (forward + backward + weight)


def bubble_over_ideal(ranks: int, microbatches: int, chunks: int = 1) -> Fraction:
    """(p−1)/(v·m): Narayanan et al. 2021, §2.2.1 and §2.2.2."""
    return Fraction(ranks - 1, chunks * microbatches)


def bubble_over_total(ranks: int, microbatches: int, chunks: int = 1) -> Fraction:
    """(p−1)/(v·m+p−1): Huang et al. 2019, §2.3, for v = 1; Narayanan et al. 2021, §2.2.2."""
    return Fraction(ranks - 1, chunks * microbatches + ranks - 1)


def zero_bubble_h1(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(F+I) − min(m−1, p−1)W, which is (p−1)(F+I−W) for m ≥ p, of the busiest rank, where W ≤ F and W ≤ I.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 2; for m ≤ p appendix H.
    """
    return (ranks - 1) * (forward + backward) - min(microbatches - 1, ranks - 1) * weight


def zero_bubble_h2(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(F+I) − min(m−1, 2(p−1))W, which is (p−1)(F+I−2W) for m ≥ 2p−1, of the busiest rank, where W ≤ F and W ≤ I.

    Source: Qi et al. 2023, table 2; for m ≤ p appendix H.
    """
    return (ranks - 1) * (forward + backward) - min(microbatches - 1, 2 * (ranks - 1)) * weight


def zero_bubble_v(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(I−W) for m ≥ 2p−1, of the rank that is busy longest, where W ≤ F ≤ I (for F = I = W Qi et al. 2023, §6).

    Fewer micro-batches fill fewer gaps: (p−1)(F+I) − (min(m, p) − 1)F − (min(m, 2p−1) − p)W, the last term for m > p.
    """
    forwards = min(microbatches, ranks) - 1
    weights = max(0, min(microbatches, 2 * ranks - 1) - ranks)
    return (ranks - 1) * (forward + backward) - forwards * forward - weights * weight


# ---- micro-batches in flight: from the start of their forward to the end of B, or of I ----


def gpipe_in_flight(microbatches: int) -> int:
    """m: the first backward comes after the last forward (Huang et al. 2019, §2.3)."""
    return microbatches


def one_f_one_b_in_flight(ranks: int, microbatches: int, rank: int) -> int:
    """min(m, p−r): a micro-batch for each rank from here to the end (Narayanan et al. 2021, §2.2.1)."""
    return min(microbatches, ranks - rank)


# ---- messages ----


def sent(boundaries: Sequence[int], ranks: int, microbatches: int, rank: int) -> Traffic:
    """What a rank sends in a step, stage s on rank s mod p: activations forward, gradients of the same size back.

    `boundaries`: bytes of a micro-batch between each two stages (Narayanan et al. 2021, §2.2.2 and §3.2).
    """
    total = NOTHING
    if ranks == 1:
        return total  # tensors that stay on a rank need no message
    for stage, size in enumerate(boundaries):
        for end in (stage, stage + 1):  # activations leave from the one, gradients from the other
            total += one(size, 1, microbatches) if end % ranks == rank else NOTHING
    return total


def messages(ranks: int, microbatches: int, chunks: int = 1) -> int:
    """2m(vp−1) over all ranks in a step; none for p = 1 (Narayanan et al. 2021, §2.2.2)."""
    return 2 * microbatches * (chunks * ranks - 1) if ranks > 1 else 0


# ---- without a flush: one pipeline over all N micro-batches of a training, an update after each backward ----


def pipedream_versions(ranks: int, rank: int) -> int:
    """p−r versions of the weights on rank r for N ≥ 2(p−1−r), one per micro-batch (Narayanan et al. 2019, §3.3)."""
    return ranks - rank


def vertical_sync_versions(ranks: int) -> int:
    """p versions on every rank, for N ≥ 2(p−1) (vertical sync: Narayanan et al. 2019, §3.3).

    Micro-batch i uses i−(p−1), the latest is i−(p−1−r). With p−1−r more in flight, the oldest is i−(p−1)−(p−1−r).
    """
    return ranks


def two_buffered_versions() -> int:
    """2, whatever p, with an update after every k of the N micro-batches, N ≥ 2k (Narayanan et al. 2021, 2BW, §3.1)."""
    return 2


def pipedream_staleness(ranks: int, rank: int) -> int:
    """p−1−r updates between the weights of a gradient and those that it changes: p−1, p−2, …, 0 along the stages.

    Source: Narayanan et al. 2019, §3.3: w(t+1) = w(t) − ν·∇f(w₁(t−n+1), w₂(t−n+2), …, wₙ(t)), with n stages from 1.
    """
    return ranks - 1 - rank


def vertical_sync_staleness(ranks: int) -> int:
    """p−1 on every rank: w(t+1) = w(t) − ν·∇f(w₁(t−n+1), …, wₙ(t−n+1)) (Narayanan et al. 2019, §3.3)."""
    return ranks - 1


def two_buffered_staleness() -> int:
    """1 on every rank: w(t+1) = w(t) − ν·∇f(w(t−1)).

    Source: Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", 2BW, §3.1.
    """
    return 1
