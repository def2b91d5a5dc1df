"""Shared experts: what they add to a mixture, and that they learn from every token."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.mixture_of_experts.layer import MoELayer
from minitrain.mixture_of_experts.shared_experts import SharedExperts

HIDDEN = 4


def mixture():
    torch.manual_seed(0)
    experts = [nn.Linear(HIDDEN, HIDDEN) for _ in range(3)]
    return MoELayer(nn.Linear(HIDDEN, 3, bias=False), experts).double()


def test_added_to_the_mixture():
    routed, shared = mixture(), [nn.Linear(HIDDEN, HIDDEN).double() for _ in range(2)]
    x = torch.randn(2, 5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = SharedExperts(routed, shared)
    y = model(x)
    assert torch.allclose(y, routed(x) + shared[0](x) + shared[1](x), rtol=0, atol=1e-14)
    assert model.auxiliary_loss is routed.auxiliary_loss
    # The bias of a shared expert is added to each element of each token, so its gradient is their number.
    y.sum().backward()
    assert shared[1].bias.grad.tolist() == [10.0] * HIDDEN


def test_there_is_one():
    with pytest.raises(AssertionError, match="without a shared expert"):
        SharedExperts(mixture(), [])
