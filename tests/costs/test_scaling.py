"""What n devices gain: the two laws are one, the losses are those of other chapters, and where they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import checkpointing
from minitrain.costs import scaling as costs

devices, part = st.integers(1, 20_000), st.floats(0.001, 1)


@given(devices, part)
def test_both_laws_are_one(n, serial):
    # On n devices, one needs s + n(1−s) for what takes them 1: a part s/(s + n(1−s)) of its time is not divided.
    grown = serial + n * (1 - serial)
    assert costs.gustafson(serial, n) == pytest.approx(costs.amdahl(serial / grown, n))


def test_the_laws_as_gustafson_tells_them():
    # Gustafson 1988: with s = 0.8 % on 1024 processors Amdahl allows hardly more than 100; measured were 1016 to 1021.
    assert costs.amdahl(0.008, 1024) == pytest.approx(111.5, abs=0.1)
    assert costs.gustafson(0.008, 1024) == pytest.approx(1016, abs=0.5)


def test_failures_of_many_devices_come_that_much_sooner():
    interval = checkpointing.optimum(60, 3600)
    # 1000 devices that fail every 1000 hours each fail once in an hour.
    assert costs.kept(1000, 1000, 60, 600) == checkpointing.goodput(interval, 60, 600, 3600)
    assert costs.efficiency(8, 4, 2.0, kept=0.9) == pytest.approx(0.9 * 2 / 4)
