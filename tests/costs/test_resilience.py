"""Failures per hour, as published."""

from __future__ import annotations

import pytest

from minitrain.costs import resilience as costs


def test_llama_3():
    # Grattafiori et al. 2024, §3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs; one in three hours.
    assert costs.mean_hours(54 * 24, 419) == pytest.approx(3.09, abs=0.01)


def test_a_thousand_gpus_fail_every_day():
    assert costs.any_fails(0.01, 128) == pytest.approx(0.7237, abs=5e-5)
    assert costs.any_fails(0.0027, 1000) == pytest.approx(0.93, abs=5e-3)
    assert costs.any_fails(0.5, 2) == 0.75
