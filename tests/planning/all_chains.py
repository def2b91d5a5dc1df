"""Plans a quarter of the 3⁸ chains of 8 layers on 1 to 6 workers, and tries all plans of each.

`python -m tests.planning.all_chains`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from math import inf

import torch

from minitrain.costs import planning as costs
from minitrain.lessons.planning.pipedream_planner import layers_of, slowest
from minitrain.planning.pipedream_planner import plan

CHAINS = tuple(product((1, 2, 3), repeat=8))[::4]  # 1,641, which begin and end with each length
BANDWIDTH = 4.0


def all_plans(layers: int, workers: int) -> Iterator[list[tuple[int, int, int]]]:
    """First and last layer and replicas of each stage."""
    for stages in range(1, min(layers, workers) + 1):
        for counts in costs.compositions(layers, stages):
            ends = [sum(counts[:stage]) for stage in range(stages + 1)]
            for replicas in costs.compositions(workers, stages):
                yield [(i, j - 1, m) for (i, j), m in zip(pairwise(ends), replicas, strict=True)]


def best_of_all(workers: int) -> torch.Tensor:
    """The time of each chain's best plan: each of the C(7 + M, 8) plans is timed for all chains at once."""
    seconds = torch.tensor(CHAINS, dtype=torch.float64)
    n = torch.arange(8)
    weights, activations = (n + 1) * seconds, (9 - n) * (4 - seconds)  # as `layers_of` has them
    best = torch.full((len(CHAINS),), inf, dtype=torch.float64)
    for stages in all_plans(8, workers):
        time = torch.zeros_like(best)
        for i, j, m in stages:
            compute, reduce = seconds[:, i : j + 1].sum(1), 2 * (m - 1) * weights[:, i : j + 1].sum(1) / BANDWIDTH
            time = time.maximum(compute.maximum(reduce) / m)
            if j < 7:
                time = time.maximum(2 * activations[:, j] / BANDWIDTH)
        best = best.minimum(time)
    return best


def main() -> None:
    """Print how many chains got a best plan, which says truly how long it takes, for each number of workers."""
    torch.set_num_threads(1)
    for workers in range(1, 7):
        right = 0
        for chain, best in zip(CHAINS, best_of_all(workers).tolist(), strict=True):
            layers = layers_of(chain)
            time, stages = plan(layers, [(workers, BANDWIDTH)])
            all_used = sum(m for *_, m in stages) == workers and stages[0][0] == 0 and stages[-1][1] == 7
            in_a_row = all(after[0] == before[1] + 1 for before, after in pairwise(stages))
            as_stated = abs(slowest(layers, stages, BANDWIDTH) - best) <= 1e-12 * best >= abs(time - best)
            right += all_used and in_a_row and as_stated
        print(right, flush=True)


if __name__ == "__main__":
    main()
