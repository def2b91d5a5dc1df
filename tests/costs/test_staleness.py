"""What bounded staleness allows, beside simulations that know no formula."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import staleness as costs

QUARTERS = st.integers(1, 12).map(lambda k: k / 4)  # sums and quotients of these do not round


def finished(seconds: float, times: list[float], bound: int | None) -> int:
    """Steps that workers finish, event by event."""
    clocks = [0] * len(times)
    ends: list[float | None] = list(times)  # of the step that each is in; None while it waits
    while True:
        now = min(end for end in ends if end is not None)
        if now > seconds:
            return sum(clocks)
        for worker, end in enumerate(ends):
            if end == now:
                clocks[worker] += 1
                ends[worker] = None
        for worker, end in enumerate(ends):
            if end is None and (bound is None or clocks[worker] - min(clocks) <= bound):
                ends[worker] = now + times[worker]


@given(
    st.integers(0, 100).map(lambda k: k / 4), st.lists(QUARTERS, min_size=1, max_size=4), st.none() | st.integers(0, 4)
)
def test_steps_are_those_of_a_simulation(seconds, times, bound):
    assert costs.steps_until(seconds, times, bound) == finished(seconds, times, bound)


@pytest.mark.parametrize("delay", (0, 1, 2, 5))
def test_the_largest_rate_divides_descents(delay):
    for part, converges in ((0.98, True), (1.02, False)):
        x = [1.0] * (delay + 1)
        for _ in range(4000):
            x.append(x[-1] - part * costs.largest_rate(3.0, delay) * 3.0 * x[-1 - delay])
        assert (max(map(abs, x[-40:])) < 1) == converges


def test_known_rates():
    assert costs.largest_rate(0.5, 0) == pytest.approx(4)  # gradient descent: 2/λ
    assert costs.largest_rate(1.0, 1) == pytest.approx(1)
    assert costs.largest_rate(1.0, 1000) == pytest.approx(math.pi / 2001, rel=1e-5)


def test_bytes_served():
    assert costs.bytes_served(pulls=5, pushes=4, trained=100, other=8, workers=2) == (516, 400)
