"""Means by label over ranks, and units of loss."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.craft.loss_by_source import mean_by
from tests.second_device.any_order import AnyOrder


def means(world):
    losses = torch.tensor([[1.0, 3.0], [5.0, 7.0]]) + 10 * world.rank
    sources = torch.tensor([0, 2 if world.rank else 0])
    by_source = mean_by(losses, sources[:, None], 4)
    by_position = mean_by(losses, torch.arange(2), 2)
    return [each.tolist() for each in (*by_source, *by_position)]


def test_ranks_with_different_numbers_of_tokens(ranks):
    for source, tokens, position, each in ranks(2).run(means):
        # Rank 0 has four tokens of source 0, rank 1 two of each of sources 0 and 2.
        assert tokens == [6, 0, 2, 0] and each == [4, 4]
        assert source[0] == pytest.approx((1 + 3 + 5 + 7 + 11 + 13) / 6) and source[2] == 16
        assert math.isnan(source[1]) and math.isnan(source[3])
        assert position == [8, 10]


def in_any_order(world):
    losses, labels = torch.rand(40, 25), torch.randint(3, (40, 1))
    right = mean_by(losses, labels, 3)
    with AnyOrder():
        plain = [torch.zeros(3).index_add_(0, labels.expand_as(losses).flatten(), losses.flatten()) for _ in range(9)]
        assert any(not each.equal(plain[0]) for each in plain)
        return all(each.equal(other) for each, other in zip(mean_by(losses, labels, 3), right, strict=True))


def test_a_gpu_gives_the_same_bits_twice(ranks):
    assert ranks(1).run(in_any_order) == [True]
