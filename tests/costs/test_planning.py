"""Bounds of cuts, and published rounds of halving."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import planning as costs


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
def test_bounds(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    least, most = costs.cut_bounds(seconds, stages)
    assert least - 1e-9 <= costs.best_cut(seconds, stages) <= most + 1e-9


def test_rounds_of_a_bracket_of_hyperband():
    # Li et al. 2018, table 1, s = 3 or 4 with η = 3: 81, 27, 9, 3 candidates with 1, 3, 9, 27 units each. 4 · 81 units.
    assert costs.halving_rounds(81, 4 * 81, 3) == [(81, 1), (27, 3), (9, 9), (3, 27)]
