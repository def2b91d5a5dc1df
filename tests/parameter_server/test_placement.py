"""Placement: every tensor once, and no fuller than Graham's theorems allow."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.parameter_server import place

tensors = st.lists(st.integers(0, 60), max_size=7)


def loads(sizes, owners, servers):
    return [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == s) for s in range(servers)]


@settings(max_examples=60)
@given(tensors, st.integers(1, 4))
def test_no_fuller_than_the_theorems_allow(sizes, servers):
    fullest = max(loads(sizes, place(sizes, servers), servers))
    # Graham 1966: a server was emptiest when it got its last tensor.
    assert fullest <= sum(sizes) / servers + (1 - 1 / servers) * max(sizes, default=0) + 1e-9
    # Graham 1969, theorem 2.
    best = min(max(loads(sizes, owners, servers)) for owners in product(range(servers), repeat=len(sizes)))
    assert fullest <= (4 / 3 - 1 / (3 * servers)) * best + 1e-9


def test_the_largest_goes_first_and_equal_ones_in_their_order():
    assert place([1, 8, 3, 3], 2) == [1, 0, 1, 1]
    assert place([4, 4, 4], 3) == [0, 1, 2]
    assert place([], 2) == []
    with pytest.raises(ValueError, match="servers=0 must be at least 1"):
        place([1], 0)
    with pytest.raises(ValueError, match=r"sizes=\[1, -2\] must not be negative"):
        place([1, -2], 1)
