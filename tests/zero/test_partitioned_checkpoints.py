"""Partitioned checkpoints in a group of ranks, and without gradients; on all ranks they are the lesson's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger, SavedActivations, axes
from minitrain.zero import partitioned_checkpoints as technique


def blocks():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(3)]


def run(its, x):
    for block in its:
        x = block(x)
    return x


def in_pairs(world, host):
    group = axes(dp=2, tp=2)["tp"].get_group()
    reference = blocks()
    ours = copy.deepcopy(reference)
    technique.partition(ours, group, host)
    torch.manual_seed(1)
    x = torch.randn(7, 3, 5, dtype=torch.float64).transpose(0, 1)  # 105 elements, and not contiguous
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    with SavedActivations(*ours) as saved:
        y = run(ours, inputs[0])
    assert saved.bytes == 3 * 8 * 53  # half of 105 elements for each block, rounded up
    expected = run(reference, inputs[1])
    assert torch.equal(y, expected)
    for output in (y, expected):
        output.square().sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    for one, other in zip(ours, reference, strict=True):
        for mine, its in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine.grad, its.grad)


@pytest.mark.parametrize("host", (False, True))
def test_in_a_group_gradients_are_those_of_one_device(ranks, host):
    ranks(4).run(in_pairs, host)


def at_the_edges(world):
    its = blocks()
    technique.partition(its)
    x = torch.randn(2, 5, dtype=torch.float64)
    with torch.no_grad(), Ledger() as ledger:
        run(its, x)
    with pytest.raises(AssertionError, match="requires no gradient"):
        run(its, x)
    assert not ledger.entries
    # A block that is frozen, and one whose input needs a gradient only because of it.
    for parameter in its[1].parameters():
        parameter.requires_grad_(False)
    y = run(its, x.requires_grad_())
    y.sum().backward()
    assert x.grad is not None and all(p.grad is None for p in its[1].parameters())
    assert all(p.grad is not None for p in its[0].parameters())


def test_without_gradients_nothing_is_sent_and_an_input_must_need_one(ranks):
    ranks(2).run(at_the_edges)
