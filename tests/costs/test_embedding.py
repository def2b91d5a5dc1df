"""What sparse tables cost: bytes by hand, distinct ids by trying all draws, the spread by simulation."""

from __future__ import annotations

import itertools

import pytest

from minitrain.costs import embedding as costs


@pytest.mark.parametrize("draws", [0, 1, 2, 5])
def test_distinct_ids_by_all_draws(draws):
    frequencies = costs.zipf(4, 1.3)
    mean = 0.0
    for drawn in itertools.product(range(4), repeat=draws):
        chance = 1.0
        for k in drawn:
            chance *= frequencies[k]
        mean += chance * len(set(drawn))
    assert costs.expected_distinct(draws, frequencies) == pytest.approx(mean)


def test_bytes_of_a_row():
    assert costs.row_bytes(16, 16) == 128 and costs.row_bytes(16, 1) == 68
