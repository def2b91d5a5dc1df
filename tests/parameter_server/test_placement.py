"""Placement: every tensor once, and no fuller than Graham's theorems allow."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.costs import parameter_server as costs
from minitrain.parameter_server import place

tensors = st.lists(st.integers(0, 60), max_size=7)


def loads(sizes, owners, servers):
    return [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == s) for s in range(servers)]


@settings(max_examples=60)
@given(tensors, st.integers(1, 4))
def test_no_fuller_than_the_theorems_allow(sizes, servers):
    fullest = max(loads(sizes, place(sizes, servers), servers))
    assert fullest <= costs.fullest_at_most(sizes, servers) + 1e-9
    every = product(range(servers), repeat=len(sizes))
    best = min(max(loads(sizes, owners, servers)) for owners in every)
    assert costs.least_fullest(sizes, servers) == best
    assert fullest <= costs.largest_first_ratio(servers) * best + 1e-9


def test_the_bound_is_reached():
    """Equal tensors, one more than servers; and Graham's own example: 4/3 − 1/(3k) is no exaggeration."""
    equal = [60] * 4
    assert max(loads(equal, place(equal, 3), 3)) == pytest.approx(costs.fullest_at_most(equal, 3))
    sizes = [5, 5, 4, 4, 3, 3, 3]  # k = 3: two each of 2k−1 … k+1, and three of k
    assert max(loads(sizes, place(sizes, 3), 3)) == 11
    assert costs.least_fullest(sizes, 3) == 9
    assert costs.largest_first_ratio(3) == pytest.approx(11 / 9)


def test_the_largest_goes_first_and_equal_ones_in_their_order():
    assert place([1, 8, 3, 3], 2) == [1, 0, 1, 1]
    assert place([4, 4, 4], 3) == [0, 1, 2]
    assert place([], 2) == []
    with pytest.raises(ValueError, match="servers=0 must be at least 1"):
        place([1], 0)
    with pytest.raises(ValueError, match=r"sizes=\[1, -2\] must not be negative"):
        place([1, -2], 1)
