"""Bytes of states by shape, what a real model comes to, the traffic of norms, and the polynomial of Newton–Schulz."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import optimizers as costs

sides = st.integers(1, 10_000)
shapes = st.lists(st.integers(1, 50), min_size=1, max_size=4).map(tuple)


@given(sides, sides)
def test_a_matrix(rows, columns):
    shape, elements = (rows, columns), rows * columns
    assert costs.adam(shape) == costs.lamb(shape) == 8 * elements
    assert costs.lars(shape) == costs.muon(shape) == 4 * elements
    # (r + c)/(rc) · 4 bytes per parameter.
    assert costs.adafactor(shape) / elements == pytest.approx(4 * (1 / rows + 1 / columns))
    assert costs.sm3(shape) == costs.adafactor(shape)
    assert 2 * elements < costs.adam8bit(shape) <= 2 * elements + 8 * elements / 2048 + 8


@given(shapes)
def test_other_shapes(shape):
    elements = math.prod(shape)
    assert costs.sm3(shape) == 4 * sum(shape)
    assert costs.adafactor(shape) == 4 * (sum(shape) if len(shape) == 2 else elements)
    if len(shape) == 1:
        assert costs.adafactor(shape) == costs.sm3(shape) == costs.lars(shape) == 4 * elements


def test_eight_bits():
    assert costs.adam8bit((4096,)) == 2 * 4096 + 2 * 2 * 4
    assert costs.adam8bit((4097,)) == 2 * 4097 + 2 * 3 * 4
    assert costs.adam8bit((10,), block=3) == 20 + 2 * 4 * 4
    assert costs.adam((10,), item=2) == 40


def test_a_model():
    # One matrix and its bias.
    held = costs.per_parameter([(4096, 1024), (4096,)])
    elements = 4096 * 1024 + 4096
    assert held["Adam"] == held["LAMB"] == 8 and held["LARS"] == 4
    assert held["Muon"] == pytest.approx((4 * 4096 * 1024 + 8 * 4096) / elements)
    assert held["8-bit Adam"] == pytest.approx((2 * elements + 8 * (2048 + 2) + 2048) / elements)
    assert held["Adafactor"] == held["SM3"] == pytest.approx(4 * (4096 + 1024 + 4096) / elements)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.integers(1, 9))
def test_norms_are_small(elements, ranks):
    plain, with_norms = costs.zero1_traffic(elements, ranks), costs.zero1_traffic(elements, ranks, norms=2)
    assert plain.all_reduce == 0 and with_norms.all_reduce == 8 * len(elements)
    assert plain.reduce_scatter == with_norms.all_gather
    assert 0 <= plain.all_gather - 4 * sum(elements) < 4 * ranks and plain.all_gather % (4 * ranks) == 0


def test_roundings():
    assert costs.largest_rounding(True) == 0.45 / 64
    assert costs.largest_rounding(False) == 0.45 / 128


def test_newton_schulz():
    assert costs.newton_schulz(1.0, steps=1) == pytest.approx(0.7010)
    assert costs.newton_schulz(0.0) == 0 and costs.newton_schulz(-0.3) == -costs.newton_schulz(0.3)
    after = [costs.newton_schulz(1.001**-k) for k in range(int(math.log(1 / 0.003, 1.001)) + 1)]
    assert 0.68 < min(after) < 0.69 and 1.20 < max(after) < 1.21
    # As the polynomial of four products: twice r²c, r³ and r²c.
    assert costs.newton_schulz_flops(3, 5, steps=1) == costs.newton_schulz_flops(5, 3, steps=1) == 180 + 54


def test_what_ranks_need_of_whole_tensors_by_hand():
    shapes = [(31, 17), (21,), (5, 63)]
    assert costs.norms_payload(shapes) == 4 * 2 * 3
    # Sums of rows and columns, or squares; squares of parameters and of updates.
    assert costs.adafactor_payload(shapes, 8) == 8 * ((31 + 17) + 21 + (5 + 63) + 3 + 3)
    assert costs.muon_payload([527 + 315, 7], 4) == 2 * (844 + 8)


@given(st.integers(1, 1000))
def test_scaled_variance(k):
    # α²σ²/B: k times the rate and the batch is k²/k; the root of k is k/k.
    assert costs.scaled_variance(k, k) == k and costs.scaled_variance(k, 1) == 1 / k
    assert costs.scaled_variance(k * k, k) == 1
