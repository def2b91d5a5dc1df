"""Partitioned checkpoints without gradients; the lesson and the promises have the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.zero import partitioned_checkpoints as technique


def without_gradients(world):
    block = nn.Linear(5, 5).double()
    technique.partition([block])
    x = torch.randn(2, 5, dtype=torch.float64)
    with torch.no_grad(), Ledger() as ledger:
        block(x)
    with pytest.raises(AssertionError, match="requires no gradient"):
        block(x)
    assert not ledger.entries


def test_without_gradients_nothing_is_sent_and_an_input_must_need_one(ranks):
    ranks(2).run(without_gradients)
