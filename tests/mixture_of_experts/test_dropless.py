"""Dropless experts without tokens, and with rows that torch's grouped product does not take."""

from __future__ import annotations

import torch

from minitrain.mixture_of_experts import dropless

HIDDEN, INNER = 8, 16


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def experts(count):
    return draw(count, INNER, HIDDEN, seed=1), draw(count, HIDDEN, INNER, seed=2)


def test_no_tokens():
    nothing = torch.zeros(0, 2, dtype=torch.long)
    assert dropless.compute(draw(0, HIDDEN), nothing, draw(0, 2), *experts(3)).shape == (0, HIDDEN)


def test_product_in_float32(hidden=6):
    """Rows of 6 float32 are no multiple of 16 bytes: a loop over stretches.

    A sum of h products in float32 is off by at most h · 2⁻²⁴/(1 − h · 2⁻²⁴) of the sum of their sizes.
    """
    rows, weight = draw(9, hidden, dtype=torch.float32), draw(3, 4, hidden, seed=1, dtype=torch.float32)
    ends = torch.tensor([2, 2, 9], dtype=torch.int32)
    found = dropless.grouped_product(rows, weight, ends).double()
    part = hidden * 2**-24 / (1 - hidden * 2**-24)
    for row, expert in enumerate([0, 0, 2, 2, 2, 2, 2, 2, 2]):
        matrix, x = weight[expert].double(), rows[row].double()
        assert ((found[row] - matrix @ x).abs() <= part * (matrix.abs() @ x.abs())).all()
