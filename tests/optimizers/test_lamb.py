"""LAMB: Adam's direction at a length of its own, φ, zeros, and parts of layers on ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.adam import Adam
from minitrain.optimizers.lamb import LAMB
from tests.optimizers.common import step


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(1e-3, 0.5), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_adams_direction_at_a_length_of_its_own(seed, lr, shape):
    generator = torch.Generator().manual_seed(seed)
    x, g = (0.1 + torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    ours, adams = x.clone(), x.clone()
    step(LAMB([ours], lr=lr, weight_decay=0.0), g)
    step(Adam([adams], lr=1.0, eps=1e-6), g)
    torch.testing.assert_close((ours - x) / (ours - x).norm(), (adams - x) / (adams - x).norm())
    assert float((ours - x).norm()) == pytest.approx(lr * float(x.norm()))


def test_a_layer_of_zeros_steps_as_in_adam():
    x, right = torch.zeros(2, 2), torch.zeros(2, 2)
    optimizers = LAMB([x], lr=0.1), Adam([right], lr=0.1, eps=1e-6)
    g = torch.randn(2, 2)
    for optimizer in optimizers:
        step(optimizer, g)
    torch.testing.assert_close(x, right)


def test_phi_as_in_other_implementations():
    x = torch.full((4,), 100.0)  # a norm of 200
    step(LAMB([x], lr=0.1, phi=(0, 10), weight_decay=0.0), torch.ones(4))
    # A step of 0.1 · 10, each of the four by half of it.
    torch.testing.assert_close(x, torch.full((4,), 99.5))


def a_missing_gradient(world):
    part = torch.ones(2 + world.rank)
    optimizer = LAMB([part], sharded=True)
    with pytest.raises(AssertionError, match="no gradient"):
        optimizer.step()  # on every rank, before the all-reduce: else this test would wait for ever
    return True


def test_bad_input_is_found_before_anything_is_sent(ranks):
    assert all(ranks(2).run(a_missing_gradient))
