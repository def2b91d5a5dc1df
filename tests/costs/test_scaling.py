"""What n devices gain: the two laws are one, the losses are those of other chapters, and where they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import checkpointing, pipeline
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


@given(devices, part)
def test_work_that_is_repeated_leaves_amdahls_efficiency(n, serial):
    assert costs.efficiency(1, n, costs.repeated(serial, n)) == pytest.approx(costs.amdahl(serial, n) / n)


@given(st.integers(1, 99), st.integers(1, 999))
def test_a_bubble_leaves_what_chapter_11_says(ranks, microbatches):
    found = costs.efficiency(3 * microbatches * ranks, ranks, float(pipeline.bubble(ranks, 1, 2)))
    assert found == pytest.approx(1 - float(pipeline.bubble_over_total(ranks, microbatches)))


@given(st.integers(1, 99), st.integers(1, 99))
def test_uneven_shares_leave_the_mean_over_the_most(pieces, n):
    found = costs.efficiency(pieces, n, costs.uneven(pieces, n, 1))
    assert found == pytest.approx(pieces / n / costs.step_time(pieces, n, 1))


def test_failures_of_many_devices_come_that_much_sooner():
    interval = checkpointing.optimum(60, 3600)
    # 1000 devices that fail every 1000 hours each fail once in an hour.
    assert costs.kept(1000, 1000, 60, 600) == checkpointing.goodput(interval, 60, 600, 3600)
    assert costs.efficiency(8, 4, 2.0, kept=0.9) == pytest.approx(0.9 * 2 / 4)
