"""What may not need all gradients, and which weights a step inside backward reaches; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.zero.step_in_backward import StepInBackward


class Tied(nn.Module):
    """One weight in two layers, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 2), 0.5))
        self.frozen = nn.Parameter(torch.eye(2), requires_grad=False)

    def forward(self, x):
        return (x @ self.weight @ self.frozen).tanh() @ self.weight


def test_a_tied_weight_is_stepped_once_with_the_sum_and_a_frozen_one_never():
    x, right = torch.tensor([[1.0, 2.0]]), Tied()
    right(x).sum().backward()
    torch.optim.SGD([right.weight], lr=0.1).step()
    module = Tied()
    StepInBackward(module, torch.optim.SGD, lr=0.1)(x).sum().backward()
    assert torch.equal(module.weight, right.weight)
    assert torch.equal(module.frozen, torch.eye(2))


def test_a_second_micro_batch_is_refused():
    model, x = StepInBackward(nn.Linear(2, 2), torch.optim.SGD, lr=0.1), torch.ones(1, 2)
    for _ in range(2):
        model(x).sum().backward()
        model.step()
    model(x).sum().backward()
    with pytest.raises(AssertionError, match="cannot be accumulated"):
        model(x).sum().backward()
