"""Biases choose experts, and learn from loads alone; the lesson has the rest."""

from __future__ import annotations

import torch

from minitrain.mixture_of_experts import bias_balanced
from tests.mixture_of_experts.plain import EXPERTS, HIDDEN, some_tokens


def test_gradients_reach_the_router_and_not_the_bias():
    x = some_tokens()
    weight = torch.ones(EXPERTS, HIDDEN, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(EXPERTS, dtype=torch.float64, requires_grad=True)
    _, gates, _ = bias_balanced.route(x, weight, bias)
    found = torch.autograd.grad((gates[:, 0] * x[:, 0]).sum(), (weight, bias), allow_unused=True)
    assert found[0].abs().max() > 0 and found[1] is None
