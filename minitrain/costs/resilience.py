"""How often something fails, how soon that is seen, and what it costs.

n, ranks or nodes; p, the chance that one of them fails in a period; M, micro-batches; S (`payload`), gradients' bytes.
"""

from __future__ import annotations

import math


def any_fails(p: float, n: int) -> float:
    """1 − (1 − p)ⁿ: the chance that at least one of n fails, if each does with p, independently."""
    return 1 - (1 - p) ** n


def mean_hours(hours: float, failures: int) -> float:
    """Hours between two failures (for Llama 3's 54 days, Grattafiori et al. 2024, §3.3.4)."""
    return hours / failures


def exit_code(signal: int) -> int:
    """128 + s: the exit status that a shell reports of a process that signal s ended (Bash manual, "Exit Status")."""
    return 128 + signal


def seen_after(since_look: int, limit: int, interval: int) -> int:
    """⌈limit/i⌉ i + i − o: from the last step of any rank until a monitor that looks every i calls it late.

    It last looked o (`since_look`) before that step, less than i and above 0. After `limit` without a step a rank is
    late.
    """
    return math.ceil(limit / interval) * interval + interval - since_look


def fault_sets(nodes: int, faults: int) -> int:
    """Σ C(n, f): ways in which at most so many of n nodes are faulty."""
    return sum(math.comb(nodes, f) for f in range(faults + 1))


def pair_bytes(nodes: int, payload: int) -> int:
    """2⌈n/2⌉ S by all nodes, if none is faulty: one round of pairs; one node of an odd number needs a second."""
    return 2 * math.ceil(nodes / 2) * payload if nodes > 1 else 0


def computed_again(crash: int, every: int) -> int:
    """Steps that a crash in step `crash`, counted from 0, loses to checkpoints after each `every` steps."""
    return crash % every


def steps_with_crashes(steps: int, every: int, crashes: list[int]) -> int:
    """Steps that are finished in all, with crashes before the end: each loses those since a checkpoint."""
    return steps + sum(computed_again(crash, every) for crash in crashes)


def data_parallel_size(left: int, micro_batches: int) -> int:
    """The largest divisor of M that is at most the number of ranks left."""
    small = [d for d in range(1, math.isqrt(micro_batches) + 1) if micro_batches % d == 0]
    return max(d for low in small for d in (low, micro_batches // low) if d <= left)


def ordered_sum_sent_in_all(payload: int, ranks: int) -> int:
    """2(n − 1)S: exactly what all ranks of a ring all-reduce send (Patarasuk & Yuan 2009, §3, for the ring)."""
    return 2 * (ranks - 1) * payload


def ordered_sum_seconds(payload: int, ranks: int, pieces: int, bandwidth: float) -> float:
    """2(P + n − 2)/P · S/B: there and back, each piece passes n − 1 links, and the pieces follow one another."""
    return 2 * (pieces + ranks - 2) / pieces * payload / bandwidth if ranks > 1 else 0.0


def named_by_clock(ranks: int, delay: float) -> int:
    """⌈d⌉: ranks whose failure comes first by the clocks, if these are 0, 1, …, n − 1 ms fast, others' d ms later."""
    return min(ranks, math.ceil(delay))
