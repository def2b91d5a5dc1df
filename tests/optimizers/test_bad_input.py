"""What every optimizer refuses, and that a refused step has changed nothing."""

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


@pytest.mark.parametrize(
    ("optimizer_class", "options", "said"),
    [
        (Adam, {"betas": (0.9, 1.0)}, "betas"),
        (LAMB, {"phi": (2.0, 1.0)}, "phi"),
        (LARS, {"lr": 1.0, "weight_decay": -1.0}, "weight_decay"),
        (Adafactor, {"d": 0.0}, "d=0"),
        (Adam8bit, {"block": 0}, "block=0"),
        (Muon, {"momentum": 1.0}, "momentum"),
    ],
)
def test_invalid_options(optimizer_class, options, said):
    with pytest.raises(AssertionError, match=said):
        optimizer_class([torch.ones(2, 2)], **options)


def test_shapes_that_an_optimizer_cannot_step():
    with pytest.raises(AssertionError, match="give all others to Adam"):
        Muon([torch.ones(2, 2), torch.ones(2)])
    with pytest.raises(AssertionError, match="without dimensions"):
        SM3([torch.tensor(1.0)])
    with pytest.raises(AssertionError, match="nothing to step"):
        Adam8bit([torch.ones(0)])
