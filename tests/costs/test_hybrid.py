"""Costs of hybrid parallelism: against adding up one id at a time, and averages against all ways to spread ids."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import hybrid as costs


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=2, max_size=2),
            min_size=n,
            max_size=n,
        )
    )
)
def test_every_id_row_and_gradient_that_changes_hands(wishes):
    workers, dimensions, item = len(wishes), [3, 5], 2
    sent, received = [0] * workers, [0] * workers
    for asks, wish in enumerate(wishes):
        for counts, dimension in zip(wish, dimensions, strict=True):
            for owns, ids in enumerate(counts):
                if owns != asks:
                    there, back = ids * (8 + dimension * item), ids * dimension * item
                    sent[asks] += there
                    received[owns] += there
                    sent[owns] += back
                    received[asks] += back
    found = [costs.worker(wishes, dimensions, rank, item) for rank in range(workers)]
    assert [step.sent.bytes for step in found] == sent
    assert [step.received.bytes for step in found] == received
    pairs = sum(
        any(counts[owns] for counts in wishes[asks]) for asks, owns in product(range(workers), repeat=2) if asks != owns
    )
    assert sum(step.sent.messages for step in found) == 3 * pairs


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
