"""PipeDream's planner: cut a chain of layers into stages, and give each stage as many workers as it needs.

**Idea.** A pipeline is as fast as its slowest stage. A stage of m replicas takes an m-th of the time per minibatch, but
has to all-reduce its weights; a cut costs a message of activations. Whatever the last stage is, the stages before it
must be a best plan of the layers and workers that are left: a dynamic program over layers and workers.

**Source.** Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", §3.1, with levels:
workers within a server are planned first, and servers take the place of workers at the next level. The costs of a
stage and of a cut are arguments, since the authors' code has others than their paper.
**Sent.** Nothing: it plans with the numbers of a profile.
**Cost.** O(N³M²) steps for N layers and M workers of each level. Also called hybrid or replicated pipeline planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from minitrain.planning.profile import Layer

Plan = tuple[float, list[tuple[int, int, int]]]  # seconds per minibatch; first and last layer and workers of each stage


def paper_stage(seconds: float, weights: float, m: int, bandwidth: float) -> float:
    """Seconds per minibatch of a stage with m replicas: the all-reduce overlaps with computing."""
    return max(seconds, 2 * (m - 1) * weights / bandwidth) / m


def paper_cut(activations: float, m: int, bandwidth: float) -> float:
    """Seconds per minibatch of the messages into a stage with m replicas: activations, and their gradients back."""
    return 2 * activations / bandwidth


def plan(
    layers: Sequence[Layer],
    levels: Sequence[tuple[int, float]],
    stage: Callable[[float, float, int, float], float] = paper_stage,
    cut: Callable[[float, int, float], float] = paper_cut,
) -> Plan:
    """The plan whose slowest stage is fastest.

    Args:
        layers: The profile.
        levels: Workers and bytes per second of each level, the innermost first: `[(16, 1e9)]` for 16 workers in a flat
            network, `[(4, 10e9), (4, 1.25e9)]` for 4 servers of 4. All of them are used.
        stage: Cost of a stage from its seconds, bytes of weights, replicas, and bytes per second.
        cut: Cost of a cut from its bytes of activations, replicas after it, and bytes per second.
    """
    assert layers and levels, f"there is nothing to plan: {len(layers)=}, {len(levels)=}"
    for workers, bandwidth in levels:
        assert workers >= 1 and bandwidth > 0, f"{workers=} must be at least 1, and {bandwidth=} above 0"
    seconds = [(layer.forward + layer.backward) / 1000 for layer in layers]
    assert min(seconds) >= 0 < sum(seconds), f"layers must take time, and none less than 0: {seconds=}"
    weights = [layer.weight for layer in layers]

    # The plan of layers i to j below the first level: a single worker has them all.
    def best(i: int, j: int) -> Plan:
        return sum(seconds[i : j + 1]), [(i, j, 1)]

    for workers, bandwidth in levels:
        # Each level plans with copies of what the level below has found.
        best = one_level(layers, weights, best, workers, bandwidth, stage, cut)
    return best(0, len(layers) - 1)


def one_level(layers, weights, inner, workers, bandwidth, stage, cut) -> Callable[[int, int], Plan]:
    @cache
    def T(i: int, j: int, m: int) -> Plan:
        # One stage: m copies of the best plan of the level below, and all weights all-reduced among them.
        time, stages = inner(i, j)
        return stage(time, sum(weights[i : j + 1]), m, bandwidth), [(a, b, m * r) for a, b, r in stages]

    @cache
    def A(i: int, j: int, m: int) -> Plan:
        best = T(i, j, m)
        # Or the last stage is s+1 to j with m' of the workers, and the others have a best plan of i to s.
        for s in range(i, j):
            for m_prime in range(1, m):
                before, last = A(i, s, m - m_prime), T(s + 1, j, m_prime)
                time = max(before[0], cut(layers[s].activation, m_prime, bandwidth), last[0])
                if time < best[0]:
                    best = time, before[1] + last[1]
        return best

    return lambda i, j: A(i, j, workers)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
