"""Schedules at their corners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.craft.schedules import constant, cosine, warm_up, warmup_stable_decay


@given(st.integers(0, 50), st.integers(1, 200), st.integers(0, 300))
def test_factors_lie_between_0_and_1_and_fall_after_the_warm_up(warmup, more, step):
    steps = warmup + more
    for factor in (
        lambda n: cosine(n, steps, warmup),
        lambda n: constant(n, warmup),
        lambda n: warmup_stable_decay(n, steps, warmup, more),
    ):
        assert 0 <= factor(step) <= 1
        assert (factor(step + 1) >= factor(step)) if step < warmup else (factor(step + 1) <= factor(step) + 1e-15)
    assert cosine(steps, steps, warmup) == pytest.approx(0.1)
    assert warmup_stable_decay(steps, steps, warmup, more) == 0


def test_by_hand():
    assert [warm_up(step, 3) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert cosine(6, 10, 2) == pytest.approx(0.55)  # half-way between 1 and 0.1
    assert [warmup_stable_decay(step, 8, 0, 4) for step in (3, 4, 5, 8)] == [1, 1, 0.5, 0]
    assert cosine(0, 0, 0) == 1


def test_a_decay_that_does_not_fit():
    with pytest.raises(AssertionError, match="warmup=6 and decay=5 do not fit into steps=10"):
        warmup_stable_decay(0, 10, 6, 5)
