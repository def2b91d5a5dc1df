"""Failures per hour, as published."""

from __future__ import annotations

import pytest

from minitrain.costs import resilience as costs


def test_llama_3():
    # Grattafiori et al. 2024, §3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs; one in three hours.
    assert costs.mean_hours(54 * 24, 419) == pytest.approx(3.09, abs=0.01)
