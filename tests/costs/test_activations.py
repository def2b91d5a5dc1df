"""Activations: the terms against the paper's equations and printed numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import activations

# Korthikanti et al. 2022, table 3: heads, hidden, layers, pipeline stages, micro-batch.
TABLE_3 = {
    "22B": (64, 6144, 48, 1, 4),
    "175B": (96, 12288, 96, 8, 1),
    "530B": (128, 20480, 105, 35, 1),
    "1T": (160, 25600, 128, 64, 1),
}
SEQ, TENSOR = 2048, 8  # §6

small = st.integers(1, 6)


@given(small, small, small, small, small)
def test_terms_add_up_to_the_equations(b, chunk, size, a_over_t, t):
    a = a_over_t * t
    h, s = a * size, chunk * t
    sbh, scores = s * b * h, 5 * a * s / h

    def layer(*way):
        return activations.layer(b, s, h, a, *way)

    assert layer() == pytest.approx(sbh * (34 + scores))
    assert layer(t) == pytest.approx(sbh * (10 + 24 / t + scores / t))
    assert layer(t, True) == pytest.approx(sbh / t * (34 + scores))
    assert layer(t, False, "selective") == pytest.approx(sbh * (10 + 24 / t))
    assert layer(t, True, "selective") == pytest.approx(34 * sbh / t)
    assert layer(t, False, "full") == 2 * sbh
    assert layer(t, True, "full") == pytest.approx(2 * sbh / t)
    assert layer(1, True) == layer(1, False)


def percent_of_tensor_parallel(size, *way):
    heads, hidden, _, _, batch = TABLE_3[size]
    shape = (batch, SEQ, hidden, heads, TENSOR)
    return 100 * activations.layer(*shape, *way) / activations.layer(*shape)


@pytest.mark.parametrize("size", TABLE_3)
def test_figure_7(size):
    """§6.1: each alone nearly halves it; together about 5x, under 20%; about twice full recomputation's 10%."""
    both = percent_of_tensor_parallel(size, True, "selective")
    assert 45 < percent_of_tensor_parallel(size, True) < 70
    assert 45 < percent_of_tensor_parallel(size, False, "selective") < 65
    assert round(100 / both) in (5, 6)
    assert both < 20.5
    assert round(percent_of_tensor_parallel(size, False, "full"), -1) == 10


@pytest.mark.parametrize(("size", "scores", "saved"), (("175B", 80, 70), ("530B", 64, 65)))
def test_selective_recomputation_saves_what_section_5_says(size, scores, saved):
    heads, hidden, *_ = TABLE_3[size]
    none = activations.layer(1, SEQ, hidden, heads)
    selective = activations.layer(1, SEQ, hidden, heads, recompute="selective")
    assert none / (SEQ * hidden) == 34 + scores
    assert int(100 * (1 - selective / none)) == saved
