"""Costs of hybrid parallelism: against adding up one id at a time, and averages against all ways to spread ids."""

from __future__ import annotations

from itertools import product

import pytest

from minitrain.costs import hybrid as costs


@pytest.mark.parametrize("workers", (2, 3))
def test_averages_over_all_ways_to_spread_ids(workers):
    ids, dimension = 3, 2  # each worker wants the same three
    busy = served = 0
    for owners in product(range(workers), repeat=ids):
        wishes = [[[owners.count(rank) for rank in range(workers)]]] * workers
        step = costs.worker(wishes, [dimension], 0)
        busy += step.sent.bytes + step.received.bytes
        served += workers * owners.count(0) * (8 + 2 * dimension * 4)  # rank 0 as one of `workers` servers
    ways = workers**ids
    assert costs.on_average(ids, dimension, workers) == pytest.approx(busy / ways)
    assert costs.server_on_average(ids, dimension, workers, servers=workers) == pytest.approx(served / ways)
