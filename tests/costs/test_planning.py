"""Bounds of cuts, all cuts and plans by hand, the pipeline's time, and published rounds of halving."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import planning as costs


@pytest.mark.parametrize(("total", "parts"), [(1, 1), (5, 1), (5, 3), (5, 5), (9, 4), (3, 4)])
def test_compositions(total, parts):
    found = list(costs.compositions(total, parts))
    assert len(found) == len(set(found)) == (math.comb(total - 1, parts - 1))
    assert all(sum(each) == total and len(each) == parts and min(each) >= 1 for each in found)


def test_a_cut_by_hand():
    assert costs.best_cut((3, 1, 4, 1, 5), 2) == 8  # 3 1 4 | 1 5
    assert costs.best_cut((3, 1, 4, 1, 5), 3) == 5  # 3 1 | 4 1 | 5
    # A message of 9 after the third layer: 3 1 | 4 1 5 is 10, and 3 1 4 1 | 5 is 9.
    assert costs.best_cut((3, 1, 4, 1, 5), 2, (0, 0, 10, 0, 0)) == 9


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
def test_bounds(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    least, most = costs.cut_bounds(seconds, stages)
    assert least - 1e-9 <= costs.best_cut(seconds, stages) <= most + 1e-9


def test_a_plan_by_hand():
    # Two layers of 6 s, of which the second has all the weights, on 3 workers with a byte per second.
    # One stage: max(12, 2 · 2 · 9)/3 = 12. 2-1: max(6/2, 6) = 6, and a cut of 2 · 2. 1-2: max(6, max(6, 2 · 9)/2) = 9.
    assert costs.best_plan((6, 6), (2, 0), (0, 9), 3, 1.0) == 6
    assert costs.best_plan((6, 6), (4, 0), (0, 9), 3, 1.0) == 8  # the cut
    assert costs.best_plan((6, 6), (7, 0), (0, 9), 3, 1.0) == 12  # no cut
    assert costs.best_plan((6, 6), (7, 0), (0, 9), 3, math.inf) == 4


def test_flow():
    # K minibatches through 2, 5 and 1 seconds: the last leaves the slowest after 2 + 5K.
    assert [costs.flow((2, 5, 1), k) for k in (1, 2, 10)] == [8, 13, 53]


@given(st.integers(1, 300), st.integers(2, 5), st.integers(0, 1000))
def test_rounds(n, eta, more):
    rounds = costs.halving_rounds(n, n * 10 + more, eta)
    assert len(rounds) == (math.ceil(round(math.log(n, eta), 9)) if n > 1 else 0)
    assert sum(count * steps for count, steps in rounds) <= n * 10 + more
    if rounds:
        assert rounds[0][0] == n and 1 < rounds[-1][0] <= eta


def test_rounds_of_a_bracket_of_hyperband():
    # Li et al. 2018, table 1, s = 3 or 4 with η = 3: 81, 27, 9, 3 candidates with 1, 3, 9, 27 units each. 4 · 81 units.
    assert costs.halving_rounds(81, 4 * 81, 3) == [(81, 1), (27, 3), (9, 9), (3, 27)]
