"""The router z-loss by hand, with a router, and with logits whose exponentials are too large for float32."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.mixture_of_experts import gshard, switch
from minitrain.mixture_of_experts.z_loss import with_z_loss, z_loss
from tests.mixture_of_experts.plain import some_tokens


def test_by_hand():
    """Two tokens: e⁰ + e⁰ = 2, and 1 + 3 = 4, so z = ln 2 and 2 ln 2."""
    logits = torch.tensor([[0, 0], [0, math.log(3)]], dtype=torch.float64)
    expected = 0.1 * (math.log(2) ** 2 + (2 * math.log(2)) ** 2) / 2
    assert z_loss(logits, 0.1).item() == pytest.approx(expected, abs=1e-15)


def test_gradient():
    logits = some_tokens().requires_grad_()
    assert torch.autograd.gradcheck(z_loss, (logits,))


def test_large_logits_in_float32():
    assert z_loss(torch.tensor([[200.0, 0.0]]), 1.0).item() == 200.0**2


@pytest.mark.parametrize("route", (switch.route, lambda x, w: gshard.route(x, w, torch.full((len(x),), 0.5))))
def test_with_a_router(route):
    x, weight = some_tokens(), torch.eye(4, 5, dtype=torch.float64)
    chosen, gates, loss = route(x, weight)
    also_chosen, also_gates, more = with_z_loss(route, 0.01)(x, weight)
    assert torch.equal(chosen, also_chosen) and torch.equal(gates, also_gates)
    assert (more - loss).item() == pytest.approx(0.01 * (x[:, :4].exp().sum(-1).log() ** 2).mean().item(), abs=1e-15)
