"""The cost of a pipeline: the time its ranks idle, the micro-batches they hold, and the bytes between stages.

Notation: p ranks, m micro-batches, v chunks (stages of a rank), r the rank. F, I and W are the times that a *rank*
needs for one micro-batch, over all its chunks: forward, backward for the input, backward for the weights. A whole
backward takes B = I + W. All stages are equal, and messages take no time.

Each bubble is given in two ways: over the ideal time m(F+I+W), and over the total time, which is ideal plus bubble.
Times may be `Fraction`s; then results are exact.
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


def naive_bubble(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time = 0) -> Time:
    """(p−1) · m(F+I+W): one rank works at a time, and p−1 others wait.

    Source: Huang et al. 2019, "GPipe", §2.2 and figure 2b.
    """
    return (ranks - 1) * ideal_time(microbatches, forward, backward, weight)


def naive_bubble_over_total(ranks: int) -> Fraction:
    """(p−1)/p, whatever m."""
    return Fraction(ranks - 1, ranks)


def bubble(ranks: int, forward: Time, backward: Time, weight: Time = 0, chunks: int = 1) -> Time:
    """(p−1)(F+I+W)/v: of GPipe and 1F1B for v = 1, of interleaved 1F1B where p divides m.

    Source: Narayanan et al. 2021, §2.2.1 for v = 1, §2.2.2 for chunks.
    """
    return Fraction(ranks - 1, chunks) * (forward + backward + weight)


def bubble_over_ideal(ranks: int, microbatches: int, chunks: int = 1) -> Fraction:
    """(p−1)/(v·m).

    Source: Narayanan et al. 2021, §2.2.1 and §2.2.2.
    """
    return Fraction(ranks - 1, chunks * microbatches)


def bubble_over_total(ranks: int, microbatches: int, chunks: int = 1) -> Fraction:
    """(p−1)/(v·m+p−1), for v = 1 (p−1)/(m+p−1).

    Source: Huang et al. 2019, §2.3; with chunks from Narayanan et al. 2021, §2.2.2.
    """
    return Fraction(ranks - 1, chunks * microbatches + ranks - 1)


def zero_bubble_h1(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(F+I−W) for m ≥ p, of the rank that is busy longest, where W ≤ F and W ≤ I.

    With fewer micro-batches only m−1 of the p−1 W's find a gap to fill: (p−1)(F+I) − (m−1)W.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 2; for m ≤ p appendix H.
    """
    return (ranks - 1) * (forward + backward) - min(microbatches - 1, ranks - 1) * weight


def zero_bubble_h2(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(F+I−2W) for m ≥ 2p−1, of the rank that is busy longest, where W ≤ F and W ≤ I.

    It is 0 where F = I = W. With fewer micro-batches only m−1 of the 2(p−1) W's find a gap to fill.

    Source: Qi et al. 2023, table 2; for m ≤ p appendix H.
    """
    return (ranks - 1) * (forward + backward) - min(microbatches - 1, 2 * (ranks - 1)) * weight


def zero_bubble_v(ranks: int, microbatches: int, forward: Time, backward: Time, weight: Time) -> Time:
    """(p−1)(I−W) for m ≥ 2p−1, of the rank that is busy longest, where W ≤ F ≤ I: 0 where F = I = W.

    With fewer micro-batches, the first p fill gaps with an F each and those from p+1 to 2p−1 with a W each:
    (p−1)(F+I) − (min(m, p) − 1)F − (min(m, 2p−1) − p)W, the last term for m > p only.

    Source: derived; for F = I = W Qi et al. 2023, §6.
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


def interleaved_in_flight(ranks: int, microbatches: int, rank: int, chunks: int) -> int:
    """min(vm, 2(p−1−r) + (v−1)p + 1) chunks, each 1/v of what the rank holds: the warm-up, and the first of a pair.

    Source: Narayanan et al. 2021, §2.2.2; the count is that of Megatron-LM's schedule.
    """
    warmup = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks
    return min(chunks * microbatches, warmup + 1)


def zero_bubble_h1_in_flight(ranks: int, microbatches: int, rank: int) -> tuple[int, int]:
    """At most p−r up to I, and together with those that wait for W at most p on every rank: (min(m, p−r), min(m, p)).

    Source: Qi et al. 2023, §2.3: (p−i+1)M_B + (i−1)M_W on worker i = r+1.
    """
    return min(microbatches, ranks - rank), min(microbatches, ranks)


def zero_bubble_h2_in_flight(ranks: int, microbatches: int, rank: int) -> tuple[int, int]:
    """As for H1, but twice the warm-up: (min(m, 2(p−r)−1), min(m, 2p−1)).

    Source: Qi et al. 2023, §2.3: (2p−2i+1)M_B + (2i−2)M_W on worker i = r+1.
    """
    return min(microbatches, 2 * (ranks - rank) - 1), min(microbatches, 2 * ranks - 1)


def zero_bubble_v_in_flight(ranks: int, microbatches: int, rank: int) -> int:
    """min(2m, 2p, m+1+r) chunks up to W, each half of what the rank holds: at most the memory of 1F1B's first rank.

    Source: Qi et al. 2023, §6, for 2p; derived for fewer micro-batches.
    """
    return min(2 * microbatches, 2 * ranks, microbatches + 1 + rank)


def outputs_released(ranks: int, microbatches: int, rank: int) -> int:
    """min(m, p−1−r): of the outputs of micro-batches in flight with 1F1B, those that have surely arrived.

    A stage no longer needs an output that has been sent, because backward begins from its place in the graph. When the
    first gradient comes back, the next rank has received every output but perhaps the latest. With GPipe it is all m.

    Source: derived; the idea is that of Korthikanti et al. 2022, who release sbh elements per micro-batch in flight.
    """
    return min(microbatches, ranks - 1 - rank)


# ---- messages ----


def sent(boundaries: Sequence[int], ranks: int, microbatches: int, rank: int) -> Traffic:
    """What a rank sends in a step, stage s on rank s mod p: activations forward, gradients of the same size back.

    Args:
        boundaries: For each two stages that follow each other, the bytes that one micro-batch takes across.
        ranks: p.
        microbatches: m.
        rank: Which rank.

    Source: Narayanan et al. 2021, §2.2.2 and §3.2.
    """
    total = NOTHING
    if ranks == 1:
        return total  # tensors that stay on a rank need no message
    for stage, size in enumerate(boundaries):
        for end in (stage, stage + 1):  # activations leave from the one, gradients from the other
            total += one(size, 1, microbatches) if end % ranks == rank else NOTHING
    return total


def messages(ranks: int, microbatches: int, chunks: int = 1) -> int:
    """2m(vp−1) over all ranks in a step, (vp−1)/(p−1) times those of one chunk per rank; none for p = 1.

    Source: Narayanan et al. 2021, §2.2.2.
    """
    return 2 * microbatches * (chunks * ranks - 1) if ranks > 1 else 0


# ---- without a flush: one pipeline over all N micro-batches of a training, an update after each backward ----


def without_flush_speedup(ranks: int, microbatches: int, total: int) -> Fraction:
    """(N/m)(m+p−1)/(N+p−1): 1F1B's time for N micro-batches over that without a flush; 1+(p−1)/m as N → ∞.

    Args:
        ranks: p.
        microbatches: m, of a step of 1F1B, which ends with a flush.
        total: N, a multiple of m.

    Source: derived from the bubble of each, p−1 micro-batches per flush (Narayanan et al. 2021, §2.2.1).
    """
    return Fraction(total, microbatches) * Fraction(microbatches + ranks - 1, total + ranks - 1)


def pipedream_versions(ranks: int, rank: int) -> int:
    """p−r versions of the weights on rank r, for N ≥ 2(p−1−r): one for each micro-batch in flight.

    The newest of these micro-batches uses the latest version, so that none is kept besides.

    Source: derived; weight stashing is Narayanan et al. 2019, "PipeDream", §3.3.
    """
    return ranks - rank


def vertical_sync_versions(ranks: int) -> int:
    """p versions on every rank, for N ≥ 2(p−1): r more than with weight stashing alone.

    Rank r uses version i−(p−1) for micro-batch i, and its latest one is then i−(p−1−r). While p−1−r more micro-batches
    are in flight, i−(p−1)−(p−1−r) is the oldest that is still needed: from there to the latest it is p versions.

    Source: derived; vertical sync is Narayanan et al. 2019, §3.3.
    """
    return ranks


def two_buffered_versions() -> int:
    """2, whatever p (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", §3.1), for N ≥ 2k."""
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
    """1 on every rank: w(t+1) = w(t) − ν·∇f(w(t−1)) (Narayanan et al. 2021, 2BW, §3.1)."""
    return 1
