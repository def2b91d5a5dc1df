"""Costs of checkpoints, against operations written down, small cases by hand, and Daly's own figures."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import checkpointing as costs


@given(st.floats(0.001, 3), st.floats(0.5, 2))
def test_no_interval_is_better_than_the_optimum(saving, factor):
    best = costs.optimum(saving, 1.0)
    assert costs.goodput(best, saving, 0.1, 1.0) >= costs.goodput(factor * best, saving, 0.1, 1.0) * (1 - 1e-12)
    # Its equation holds.
    assert math.exp(best + saving) * (1 - best) == pytest.approx(1)


def test_the_optimum_is_that_of_dalys_figures():
    # M = 24 h and 6 h with δ = 5 min: 117 and 57 min. For M = 15 min his series gives 9.1, and is 0.03 off.
    assert [round(costs.optimum(5, mean)) for mean in (1440, 360)] == [117, 57]
    assert costs.optimum(5, 15) == pytest.approx(9.1, abs=0.05 + 2 * costs.daly_error(5, 15))


@pytest.mark.parametrize("part", (0.001, 0.01, 0.1))
def test_the_series_of_the_optimum(part):
    s = math.sqrt(2 * part)
    best = costs.optimum(part, 1.0)
    assert s - best == pytest.approx(costs.young_error(part, 1.0), rel=s / 10)
    assert best - (s - s**2 / 3 + s**3 / 36) == pytest.approx(costs.daly_error(part, 1.0), rel=s)


def test_the_noise_of_a_goodput_shrinks_with_the_root_of_failures():
    one = costs.goodput_noise(10, 1, 3, 50, 1)
    assert costs.goodput_noise(10, 1, 3, 50, 100) == pytest.approx(one / 10)
    # Where failures are very frequent almost nothing is kept, and it varies as the rare success does.
    chance = math.exp(-(3 + 400 + 1) / 50)
    assert costs.goodput_noise(400, 1, 3, 50, 1) == pytest.approx(400 * math.sqrt(chance) / 50, rel=0.01)


def test_the_noise_of_a_goodput_is_that_of_many_trainings():
    draw, found = random.Random(1), []
    for _ in range(1000):
        spans = [draw.expovariate(1 / 50) for _ in range(200)]
        found.append(sum(10 * max(0, (span - 3) // 11) for span in spans) / sum(spans))
    # The standard deviation of 1000 numbers is known to 1/√2000; first order in 1/200 leaves a little more.
    assert statistics.stdev(found) == pytest.approx(costs.goodput_noise(10, 1, 3, 50, 200), rel=5 / 2000**0.5)
