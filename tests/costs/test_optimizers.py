"""Bytes of states by shape, what a real model comes to, the traffic of norms, and the polynomial of Newton–Schulz."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import optimizers as costs

shapes = st.lists(st.integers(1, 50), min_size=1, max_size=4).map(tuple)


@given(shapes)
def test_other_shapes(shape):
    elements = math.prod(shape)
    assert costs.sm3(shape) == 4 * sum(shape)
    assert costs.adafactor(shape) == 4 * (sum(shape) if len(shape) == 2 else elements)
    if len(shape) == 1:
        assert costs.adafactor(shape) == costs.sm3(shape) == costs.lars(shape) == 4 * elements


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
