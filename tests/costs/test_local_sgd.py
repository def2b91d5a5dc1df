"""Bytes of averages by link, and where ranks settle, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import local_sgd as costs

curvatures = st.lists(st.floats(0.1, 0.9), min_size=1, max_size=5)


def test_bytes():
    # 10 steps with H = 4 have two averages; the last two steps are not averaged.
    assert costs.averaged_bytes(1000, 10, 4) == 2000
    assert costs.averaged_bytes(1000, 10, 11) == 0
    # 10 elements on 4 ranks of a node: each carries 3, of which the last has zeros.
    assert costs.bytes_within(40, 48, 10, 4) == (400, 96)
    assert costs.bytes_across(10, 4, 10, 4, local=4) == 2 * 3 * 4
    assert costs.outer_bytes(40) == 80
    # The paper's 500: DiLoCo communicates 500 times less.
    assert costs.averaged_bytes(7, 88_000, 1) == 500 * costs.averaged_bytes(7, 88_000, 500)


def test_a_period_below_one():
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        costs.rounds(10, 0)


def test_two_ranks_by_hand():
    # α a = 1/2 and 1/4: after one step 1/2 and 3/4 of the way are left, after two 1/4 and 9/16.
    assert costs.optimum([0.5, 0.25], [0.0, 3.0]) == pytest.approx(1.0)
    assert costs.settles_at([0.5, 0.25], [0.0, 3.0], 1.0, 1) == pytest.approx(1.0)
    assert costs.settles_at([0.5, 0.25], [0.0, 3.0], 1.0, 2) == pytest.approx(3 * 7 / 16 / (3 / 4 + 7 / 16))
    assert costs.settles_at([0.5, 0.25], [0.0, 3.0], 1.0, 500) == pytest.approx(1.5)


@given(curvatures, st.data(), st.integers(1, 20))
def test_it_is_a_fixed_point(curvatures, data, every):
    centres = [data.draw(st.floats(-1, 1)) for _ in curvatures]
    theta = costs.settles_at(curvatures, centres, 1.0, every)
    ends = []
    for a, c in zip(curvatures, centres, strict=True):
        own = theta
        for _ in range(every):
            own -= a * (own - c)
        ends.append(own)
    assert sum(ends) / len(ends) == pytest.approx(theta, abs=1e-12)
