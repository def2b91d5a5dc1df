"""Costs of checkpoints, against operations written down, small cases by hand, and Daly's own figures."""

from __future__ import annotations

import random
import statistics

import pytest

from minitrain.costs import checkpointing as costs


def test_the_optimum_is_that_of_dalys_figures():
    # M = 24 h and 6 h with δ = 5 min: 117 and 57 min. For M = 15 min his series gives 9.1, and is 0.03 off.
    assert [round(costs.optimum(5, mean)) for mean in (1440, 360)] == [117, 57]
    assert costs.optimum(5, 15) == pytest.approx(9.1, abs=0.05 + 2 * costs.daly_error(5, 15))


def test_the_noise_of_a_goodput_is_that_of_many_trainings():
    draw, found = random.Random(1), []
    for _ in range(1000):
        spans = [draw.expovariate(1 / 50) for _ in range(200)]
        found.append(sum(10 * max(0, (span - 3) // 11) for span in spans) / sum(spans))
    # The standard deviation of 1000 numbers is known to 1/√2000; first order in 1/200 leaves a little more.
    assert statistics.stdev(found) == pytest.approx(costs.goodput_noise(10, 1, 3, 50, 200), rel=5 / 2000**0.5)


def test_a_sampler_for_each_rank_by_hand():
    assert costs.per_rank_sampler([(8, 5)]) == (0, 0)
    # 8 ranks take 3 each, up to sample 24. 6 ranks begin at 18 and end at 42; 8 then begin at 8 · 7 = 56.
    assert costs.per_rank_sampler([(8, 3), (6, 4), (8, 2)]) == (24 - 18, 56 - 42)
