"""Offloaded activations: backward twice, and memory that is kept in several ways; test_full.py has the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.recomputation.activation_offload import Offload
from tests.recomputation.models import gpt, same_bits, tokens


def test_backward_twice_fetches_again():
    plain, module = gpt(dropout=0.0), gpt(dropout=0.0)
    Offload(module.blocks)
    for each in (plain, module):
        loss = each(*tokens())[1]
        loss.backward(retain_graph=True)
        loss.backward()
    same_bits(module, plain)


class Gated(nn.Module):
    """Its product keeps two views of one tensor, of which the second begins in the middle of the memory."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, -1)
        return value * gate


def test_each_view_comes_back_from_its_place_in_memory():
    plain = nn.Sequential(Gated(), Gated())
    module = copy.deepcopy(plain)
    Offload(module)
    x = torch.randn(3, 4)
    for each in (plain, module):
        each(x).sum().backward()
    for mine, right in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, right.grad)


class Views(torch.nn.Module):
    """Keeps one memory several times: as complex numbers, and again after it has been written into."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        memory = x.detach().clone()  # [4, 2, 2]
        first = memory[:, :, 0] * self.weight[:, :, 0]
        turned = torch.view_as_complex(memory) * torch.view_as_complex(self.weight)
        return first + torch.view_as_real(turned).sum(-1)


class Rewritten(Views):
    def forward(self, x):
        memory = x.detach().clone()
        self.weight * memory  # has no backward, or torch would refuse what comes next
        memory.mul_(2)
        return (self.weight * memory).sum(-1)


@pytest.mark.parametrize("kind", (Views, Rewritten))
def test_memory_that_is_kept_in_several_ways(kind):
    x, found = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(1)), []
    for offloads in (False, True):
        module = kind()
        if offloads:
            Offload([module])
        module(x).square().sum().backward()
        found.append(module.weight.grad)
    assert torch.equal(*found)
