"""The count of what autograd keeps at each moment, against a count by hand."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.lessons.recomputation.common import AliveActivations


def test_what_backward_has_used_is_taken_off():
    x, model = torch.ones(5, requires_grad=True), nn.Linear(5, 3, bias=False)
    with AliveActivations(model) as alive:
        result = model((x * 1).sin().exp()).sum()
        # The sine keeps its input, exp its result, which is also the layer's input.
        assert (alive.bytes, alive.history) == (40, [0, 20, 40])
        result.backward()
    assert (alive.bytes, alive.peak) == (0, 40)
    assert alive.history == [0, 20, 40, 20, 0]


def test_a_view_counts_its_storage_as_long_as_one_of_them_is_kept():
    x = torch.ones(4, requires_grad=True)
    with AliveActivations() as alive:
        middle = x * 1
        result = middle[:2].sin().sum() + middle[2:].exp().sum() + middle.cos().sum()
        assert alive.bytes == 16 + 8  # one storage for three; exp keeps its own result
        result.backward()
    assert alive.bytes == 0
