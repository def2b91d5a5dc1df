"""Adafactor: against torch's, and where factoring loses nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.adafactor import Adafactor
from tests.optimizers.common import pair, step


@settings(max_examples=30)
@given(
    st.floats(1e-3, 2),
    st.floats(1, 3),
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=2).map(tuple), min_size=1, max_size=3),
)
def test_like_torch_on_matrices_and_vectors(lr, d, shapes):
    # The bounds from below are far from all that is drawn, so both mean the same.
    make, theirs = partial(Adafactor, lr=lr, d=d), partial(torch.optim.Adafactor, lr=lr, d=d)
    for ours, right in pair(make, theirs, shapes):
        torch.testing.assert_close(ours, right, rtol=1e-7, atol=1e-7)


def test_other_shapes_are_not_factored():
    tensor, vector = torch.randn(2, 3, 4), None
    vector = tensor.flatten().clone()
    g = torch.randn(2, 3, 4)
    optimizers = Adafactor([tensor]), Adafactor([vector])
    step(optimizers[0], g)
    step(optimizers[1], g.flatten())
    assert torch.equal(tensor.flatten(), vector)
    assert [state.shape for state in optimizers[0].states[0]] == [(2, 3, 4)]


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_a_tensor_of_zeros_begins_with_epsilon_2(shape):
    x = torch.zeros(shape, dtype=torch.float64)
    step(Adafactor([x], lr=0.01, eps=(1e-30, 0.5)), torch.ones_like(x))
    torch.testing.assert_close(x, torch.full_like(x, -0.005))


def test_no_gradient_at_all():
    x = torch.ones(2, 3, dtype=torch.float64)
    step(Adafactor([x]), torch.zeros_like(x))
    assert x.eq(1).all()  # 0 over the root of ε₁
