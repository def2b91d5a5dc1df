"""communication: times and bandwidths; tests/collectives compares bytes and messages with what real ranks send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import communication as costs

elements, ranks = st.integers(0, 70), st.integers(1, 20)


@given(ranks, st.integers(1, 1000))
def test_where_elements_divide_the_ring_sends_the_least_possible(n, each):
    """2(n−1)/n · S, the lower bound of Patarasuk & Yuan; halving sends as little."""
    total = 4 * each * n
    least = 2 * (n - 1) * 4 * each
    assert costs.busiest(costs.ring_all_reduce, each * n, 4, n).bytes == least
    if n & (n - 1) == 0:
        assert costs.busiest(costs.halving_all_reduce, each * n, 4, n).bytes == least
    assert costs.busiest(costs.naive_all_reduce, each * n, 4, n).bytes == (n - 1) * total


@given(st.integers(4, 20))
def test_ring_and_tree_cross(n):
    """At the crossing both take the same time; up to three ranks a ring has no more steps than a tree."""
    size = costs.crossover(n, 1e-5, 2e-11)
    around, through = (time(size, n, 1e-5, 2e-11) for time in (costs.ring_all_reduce_time, costs.tree_all_reduce_time))
    assert size > 0 and around == pytest.approx(through)
    assert costs.crossover(3, 1e-5, 2e-11) == 0


# nccl-tests: the summary of doc/PERFORMANCE.md, and GatherGetBw, ScatterGetBw and SendRecvGetBw of src/*.cu.
PUBLISHED_BUS_FACTORS = {
    "all_reduce": "2*(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_gather": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
    "all_to_all": "(n-1)/n",
    "gather": "(n-1)/n",
    "scatter": "(n-1)/n",
    "send_receive": "1",
}


@pytest.mark.parametrize(("operation", "factor"), PUBLISHED_BUS_FACTORS.items())
def test_bus_bandwidths_have_the_published_factors(operation, factor):
    with pytest.raises(ValueError, match=f"operation='no {operation}' is unknown; use one of all_reduce"):
        costs.bus_bandwidth(1, 1, 2, f"no {operation}")
    for n in (1, 2, 3, 8, 1000):
        expected = 10e9 / 0.25 * eval(factor, {"n": n})
        assert costs.bus_bandwidth(10e9, 0.25, n, operation) == pytest.approx(expected)
