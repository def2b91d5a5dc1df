"""LARS: plain SGD where the ratio is one, layers that don't touch each other, and parts of layers on ranks."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minitrain.comm import axes
from minitrain.optimizers.lars import LARS
from tests.optimizers.common import parts, step


def test_layers_of_zeros_step_like_sgd():
    w, g = torch.zeros(3, 2), torch.randn(3, 2)
    step(LARS([w], lr=0.1), g)
    torch.testing.assert_close(w, -0.1 * g)
    # Without a gradient, only weight decay is left.
    w = torch.ones(3, 2)
    step(LARS([w], lr=0.1, weight_decay=0.5), torch.zeros(3, 2))
    torch.testing.assert_close(w, torch.full((3, 2), 0.95))


def test_one_step_like_torchs_sgd_at_the_layers_own_rate():
    torch.manual_seed(0)
    w, g = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    rate = 0.3 * 0.02 * w.norm() / (g.norm() + 0.1 * w.norm())
    right = w.clone()
    right.grad = g.clone()
    torch.optim.SGD([right], lr=rate.item(), weight_decay=0.1, momentum=0.9).step()
    step(LARS([w], lr=0.3, eta=0.02, weight_decay=0.1), g)
    torch.testing.assert_close(w, right, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parts_of_layers(ranks, size):
    # 21 elements of a layer on some ranks, none on others.
    make = partial(LARS, lr=0.5, eta=0.2, momentum=0.8)
    assert ranks(size).run(parts, make, True) == size * [(True, 3)]
    # Where each rank takes the norm of its part alone, that is another optimizer.
    assert ranks(size).run(parts, make, False) == size * [(size == 1, 0)]


def within_a_group(world):
    """Two groups of two ranks, each with a layer of its own in two halves."""
    group = axes(a=2, b=2)["b"].get_group()
    number = world.rank // 2
    whole = torch.arange(1.0, 9.0) + number
    half = whole.chunk(2)[world.rank % 2].clone()
    optimizer = LARS([half], lr=0.5, eta=0.1, sharded=True, group=group)
    step(optimizer, torch.ones(4) * (1 + world.rank % 2))
    right = whole.clone()
    step(LARS([right], lr=0.5, eta=0.1), torch.tensor([1.0] * 4 + [2.0] * 4))
    torch.testing.assert_close(half, right.chunk(2)[world.rank % 2])
    return True


def test_norms_are_summed_within_the_group(ranks):
    assert all(ranks(4).run(within_a_group))
