"""Learning rates that a delay allows."""

from __future__ import annotations

import math

import pytest

from minitrain.costs import staleness as costs


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
