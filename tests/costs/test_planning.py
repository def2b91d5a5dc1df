"""Published rounds of halving."""

from __future__ import annotations

from minitrain.costs import planning as costs


def test_rounds_of_a_bracket_of_hyperband():
    # Li et al. 2018, table 1, s = 3 or 4 with η = 3: 81, 27, 9, 3 candidates with 1, 3, 9, 27 units each. 4 · 81 units.
    assert costs.halving_rounds(81, 4 * 81, 3) == [(81, 1), (27, 3), (9, 9), (3, 27)]
