"""Segments of k blocks: models that do not call them in a row; test_full.py has the gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.lessons.recomputation import every_kth as lesson
from minitrain.recomputation.full import every_block as full
from minitrain.recomputation.full import every_kth
from tests.recomputation.models import gpt


class Model(nn.Module):
    """Blocks with a further argument, called in a way of choice."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3).double()

        def forward(self, x, shift, factor=1.0):
            return torch.tanh(self.linear(x) + shift) * factor

    def __init__(self, between=lambda x: x, order=(0, 1, 2), shifts=lambda shift, number: shift):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))
        self.between, self.order, self.shifts = between, order, shifts

    def forward(self, x):
        shift = torch.ones(3, dtype=torch.float64, requires_grad=True)
        for number in self.order:
            x = self.between(self.blocks[number](x, self.shifts(shift, number), factor=0.5))
        return x


@pytest.mark.parametrize(
    "how",
    (
        {"between": lambda x: 2 * x},
        {"order": (0, 2, 1)},
        {"order": (0, 1, 1, 2)},
        {"order": (1,)},
        {"shifts": lambda shift, number: shift + number},
    ),
    ids=("something between", "another order", "one twice", "only the second", "other arguments"),
)
def test_blocks_that_are_not_called_in_a_row_are_noticed(how):
    module = Model(**how)
    every_kth.recompute(module.blocks, 3)
    with pytest.raises(RuntimeError, match=r"was not called straight after block .* every_block\.recompute does not"):
        module(torch.ones(3, dtype=torch.float64))


def test_bad_input():
    module = gpt()
    with pytest.raises(ValueError, match="k=0 must be at least 1; about √3 is usual"):
        every_kth.recompute(module.blocks, 0)
    with pytest.raises(ValueError, match="same block twice"):
        every_kth.recompute([module.blocks[0], module.blocks[0]], 2)
    with pytest.raises(ValueError, match="blocks is empty"):
        every_kth.recompute([], 2)
    every_kth.recompute(module.blocks, 2)
    for again in (full.recompute, lambda blocks: every_kth.recompute(blocks, 2)):
        with pytest.raises(ValueError, match="recomputed already"):
            again(module.blocks)


def test_blocks_that_return_more_than_a_tensor_are_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    blocks = nn.Sequential(Pair(), Pair())
    every_kth.recompute(blocks, 2)
    with pytest.raises(TypeError, match="Pair returns tuple; every_kth needs blocks from a tensor to a tensor"):
        blocks(torch.ones(1))


def test_from_the_start_has_the_gradients_of_the_plain_chain():
    torch.manual_seed(0)
    blocks, found, calls = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)), [], []
    for block in blocks:
        block.register_forward_hook(lambda *_: calls.append(None))
    for module in (nn.Sequential(*blocks), lesson.InSegments(blocks, lesson.FROM_THE_START)):
        x = torch.ones(2, 3, requires_grad=True)
        blocks.zero_grad()
        module(x).sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in blocks.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert len(calls) == 4 + (4 + 4 * 5 / 2)  # plain; and forward, and L(L + 1)/2 in backward
