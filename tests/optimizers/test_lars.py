"""LARS: plain SGD where the ratio is one, and parts of layers on ranks."""

from __future__ import annotations

from functools import partial

import pytest
import torch

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


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parts_of_layers(ranks, size):
    # 21 elements of a layer on some ranks, none on others.
    make = partial(LARS, lr=0.5, eta=0.2, momentum=0.8)
    assert ranks(size).run(parts, make, True) == size * [(True, 3)]
    # Where each rank takes the norm of its part alone, that is another optimizer.
    assert ranks(size).run(parts, make, False) == size * [(size == 1, 0)]
