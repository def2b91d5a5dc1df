"""Shared experts are added to a mixture, whose loss they pass on; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.mixture_of_experts.layer import MoELayer
from minitrain.mixture_of_experts.shared_experts import SharedExperts


def test_the_loss_is_the_mixtures_and_there_is_a_shared_expert():
    routed = MoELayer(nn.Linear(4, 3, bias=False), [nn.Linear(4, 4) for _ in range(3)])
    model = SharedExperts(routed, [nn.Linear(4, 4)])
    model(torch.ones(2, 5, 4))
    assert model.auxiliary_loss is routed.auxiliary_loss
    with pytest.raises(AssertionError, match="without a shared expert"):
        SharedExperts(routed, [])
