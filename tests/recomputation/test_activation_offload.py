"""Offloaded activations: backward twice, and memory that is kept in several ways; test_full.py has the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.lessons.pictures.recomputation import copies
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


@pytest.mark.parametrize(("layers", "each"), [(4, 0.8), (4, 3.0), (6, 1.5)])
def test_the_picture_of_copies_has_two_blocks_on_the_device_and_waits_where_the_link_is_slow(layers, each):
    spans = {(row, block, end): begin for row, block, begin, end in copies(layers, each)}
    computed = sorted((begin, end, block) for (row, block, end), begin in spans.items() if row == "computing")
    assert [block for *_, block in computed] == [*range(layers), *reversed(range(layers))]
    leaves = {block: end for (row, block, end) in spans if row == "to the host"}
    for begin, _, block in computed[:layers]:
        assert sum(leaves[other] > begin for other in range(block)) <= 1
    # In the long run the slower of computing and copying sets the pace.
    (*_, (early, *_), (late, *_)) = computed[:layers]
    assert late - early == pytest.approx(max(1, each))
    (*_, (early, *_), (late, *_)) = computed
    assert late - early == pytest.approx(max(2, each))
