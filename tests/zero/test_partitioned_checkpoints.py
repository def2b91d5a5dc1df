"""Partitioned checkpoints without gradients, and of frozen blocks; the lesson and the promises have the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.zero import partitioned_checkpoints as technique


def blocks():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(3)]


def run(its, x):
    for block in its:
        x = block(x)
    return x


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
