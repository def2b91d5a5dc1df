"""A refused step of any optimizer has changed nothing."""

from __future__ import annotations

import pytest
import torch

from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.lars import LARS
from minitrain.optimizers.muon import Muon
from minitrain.optimizers.sm3 import SM3

ALL = (Adam, Adafactor, SM3, LARS, LAMB, Adam8bit, Muon)


@pytest.mark.parametrize("optimizer_class", ALL)
def test_a_missing_gradient_is_found_before_anything_changes(optimizer_class):
    first, second = torch.ones(2, 3), torch.ones(3, 2)
    optimizer = optimizer_class([first, second], lr=0.1)
    first.grad = torch.ones_like(first)
    with pytest.raises(AssertionError, match="a parameter has no gradient; call backward before step"):
        optimizer.step()
    assert first.eq(1).all() and getattr(optimizer, "t", 0) == 0
    # The refused step has left the states as they were: the next one is a first step.
    second.grad = torch.ones_like(second)
    optimizer.step()
    fresh = torch.ones(2, 3)
    other = optimizer_class([fresh], lr=0.1)
    fresh.grad = torch.ones_like(fresh)
    other.step()
    assert torch.equal(first, fresh)
