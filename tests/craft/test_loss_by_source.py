"""Means by label on a device that adds in any order; the lesson has means over ranks."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.craft.loss_by_source import bits_per_byte, mean_by
from tests.second_device.any_order import AnyOrder


def in_any_order(world):
    losses, labels = torch.rand(40, 25), torch.randint(3, (40, 1))
    right = mean_by(losses, labels, 3)
    with AnyOrder():
        plain = [torch.zeros(3).index_add_(0, labels.expand_as(losses).flatten(), losses.flatten()) for _ in range(9)]
        assert any(not each.equal(plain[0]) for each in plain)
        return all(each.equal(other) for each, other in zip(mean_by(losses, labels, 3), right, strict=True))


def test_a_gpu_gives_the_same_bits_twice(ranks):
    assert ranks(1).run(in_any_order) == [True]


def test_bits_per_byte():
    """A model that knows nothing spends 8 bits on each byte, whether it reads bytes or pairs of them."""
    assert bits_per_byte(math.log(256), 100, 100) == pytest.approx(8)
    assert bits_per_byte(math.log(256**2), 50, 100) == pytest.approx(8)
