"""Cutting a model into stages: bounds, the best by trying all, how long a pipeline takes; and the rounds of trials.

N layers, p stages, M workers, m replicas of a stage, B bytes per second, K minibatches; n candidates, η.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of so many numbers from 1 on, in order: C(total − 1, parts − 1)."""
    for ends in combinations(range(1, total), parts - 1):
        yield tuple(end - begin for begin, end in pairwise((0, *ends, total)))


def best_cut(seconds: Sequence[float], stages: int, messages: Sequence[float] = ()) -> float:
    """The slowest stage or message of the best cut into p stages, from all C(N − 1, p − 1) of them (Bokhari 1988)."""
    found = []
    for counts in compositions(len(seconds), stages):
        begin, times = 0, []
        for count in counts:
            times.append(sum(seconds[begin : begin + count]))
            begin += count
            if messages and begin < len(seconds):
                times.append(messages[begin - 1])
        found.append(max(times))
    return min(found)


def best_plan(
    seconds: Sequence[float],
    activations: Sequence[float],
    weights: Sequence[float],
    workers: int,
    bandwidth: float,
) -> float:
    """Seconds per minibatch of the best stages with replicas on M workers, by trying all of them.

    A stage of m replicas takes max(Σt, 2(m − 1) Σw / B) / m, and a cut 2a/B (Narayanan et al. 2019, §3.1, one level).
    """
    found = []
    for stages in range(1, min(len(seconds), workers) + 1):
        for counts in compositions(len(seconds), stages):
            ends = [sum(counts[:stage]) for stage in range(stages + 1)]
            sums = [(sum(seconds[i:j]), sum(weights[i:j])) for i, j in pairwise(ends)]
            cuts = max((2 * activations[end - 1] / bandwidth for end in ends[1:-1]), default=0)
            for replicas in compositions(workers, stages):
                times = [
                    max(time / m, 2 * (m - 1) / m * size / bandwidth)
                    for (time, size), m in zip(sums, replicas, strict=True)
                ]
                found.append(max(cuts, *times))
    return min(found)


def flow(stages: Sequence[float], minibatches: int) -> float:
    """Σt + (K − 1) · max t: seconds until K minibatches have passed through a pipeline; messages are stages, too."""
    return sum(stages) + (minibatches - 1) * max(stages)


def halving_rounds(candidates: int, budget: int, eta: int = 2) -> list[tuple[int, int]]:
    """⌈n/ηᵏ⌉ candidates in round k, which share 1/⌈log_η n⌉ of the budget; and the steps of each.

    Source: Jamieson & Talwalkar 2016, figure 1, for η = 2; Li et al. 2018, §3, for other η.
    """
    rounds = 0
    while eta**rounds < candidates:
        rounds += 1
    found = []
    for k in range(rounds):
        count = -(-candidates // eta**k)
        found.append((count, budget // (count * rounds)))
    return found
