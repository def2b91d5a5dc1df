"""Costs of a mixture of experts against enumeration, and against each other."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from minitrain.costs import mixture_of_experts as costs


def test_capacity_reads_the_factor_as_it_was_written():
    assert costs.capacity(100, 1, 1.15) == 115  # 1.15 · 100 in floating point is 114.99…
    assert costs.capacity(10, 4, 1.25) == 3
    assert costs.capacity(10, 4, 1.25, choices=2) == 6
    assert costs.capacity(7, 8, 1.0) == 0
    assert costs.capacity(6, 3, 2 / 3 * 3) == 4


@pytest.mark.parametrize("tokens, experts, choices", ((4, 3, 1), (3, 4, 2), (5, 2, 1), (2, 4, 4)))
def test_dropped_fraction_by_enumeration(tokens, experts, choices):
    sets = list(combinations(range(experts), choices))
    for places in range(tokens + 1):
        dropped = total = 0
        for chosen in product(sets, repeat=tokens):
            load = [sum(expert in each for each in chosen) for expert in range(experts)]
            dropped += sum(max(count - places, 0) for count in load)
            total += tokens * choices
        found = costs.dropped_fraction(tokens, experts, places, choices)
        assert found == pytest.approx(dropped / total, rel=1e-15, abs=1e-300)
