"""The interval: Daly's figures, limits, and a simulation that can be followed by hand."""

from __future__ import annotations

import pytest

from minitrain.checkpointing import interval


def test_dalys_figures():
    # Figures 3 to 5: δ = 5 min, M = 24 h, 6 h, 15 min.
    assert round(interval.daly(5, 24 * 60)) == 117
    assert round(interval.daly(5, 6 * 60)) == 57
    assert round(interval.daly(5, 15), 1) == 9.1


def test_young_and_the_limits_of_daly():
    assert interval.young(2, 9) == 6
    assert interval.daly(1e-6, 1) == pytest.approx(interval.young(1e-6, 1), rel=1e-3)
    assert interval.daly(20, 10) == interval.daly(50, 10) == 10
    # No jump where the rule changes: 2M (1 + 1/3 + 1/9) − 2M = 8/9 M, and M.
    assert interval.daly(2 * (1 - 1e-9), 1) == pytest.approx(8 / 9)
