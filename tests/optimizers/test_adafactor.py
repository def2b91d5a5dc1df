"""Adafactor: shapes that are not factored, and a tensor of zeros; the lesson compares it with torch's."""

from __future__ import annotations

import pytest
import torch

from minitrain.optimizers.adafactor import Adafactor
from tests.optimizers.common import step


def test_other_shapes_are_not_factored():
    tensor, g = torch.randn(2, 2, 3, 4)
    vector = tensor.flatten().clone()
    optimizers = Adafactor([tensor]), Adafactor([vector])
    step(optimizers[0], g)
    step(optimizers[1], g.flatten())
    assert torch.equal(tensor.flatten(), vector)
    assert [state.shape for state in optimizers[0].states[0]] == [(2, 3, 4)]


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_a_tensor_of_zeros_begins_with_epsilon_2_where_it_has_gradients(shape):
    x, g = torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
    g[0] = 0
    step(Adafactor([x], lr=0.01, eps=(1e-30, 0.5)), g)
    torch.testing.assert_close(x, -0.005 * g)
