"""LAMB: a layer of zeros, and φ as others have it; the lesson has parts of layers on ranks."""

from __future__ import annotations

import torch

from minitrain.optimizers.adam import Adam
from minitrain.optimizers.lamb import LAMB
from tests.optimizers.common import step


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
