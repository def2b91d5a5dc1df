"""The router z-loss of logits whose exponentials are too large for float32, and with a router of two choices."""

from __future__ import annotations

import pytest
import torch

from minitrain.mixture_of_experts import gshard
from minitrain.mixture_of_experts.z_loss import with_z_loss, z_loss
from tests.mixture_of_experts.plain import some_tokens


def test_large_logits_in_float32():
    assert z_loss(torch.tensor([[200.0, 0.0]]), 1.0).item() == 200.0**2


def test_with_a_router():
    def route(x, w):
        return gshard.route(x, w, torch.full((len(x),), 0.5))

    x, weight = some_tokens(), torch.eye(4, 5, dtype=torch.float64)
    chosen, gates, loss = route(x, weight)
    also_chosen, also_gates, more = with_z_loss(route, 0.01)(x, weight)
    assert torch.equal(chosen, also_chosen) and torch.equal(gates, also_gates)
    assert (more - loss).item() == pytest.approx(0.01 * (x[:, :4].exp().sum(-1).log() ** 2).mean().item(), abs=1e-15)
