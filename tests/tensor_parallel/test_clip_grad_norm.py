"""The gradients' norm against torch's on one device: what several ranks hold counts once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm
from minitrain.tensor_parallel.full.parameter_layout import mark


def by_hand(world):
    whole, cut, without = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    mark(cut, 0)
    whole.grad, cut.grad = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.0]) * (world.rank + 1)
    return gradient_norm([whole, cut, without, whole]).item()


def test_by_hand(ranks):
    # 1 + 4 once; 4 and 16 from the two pieces; a parameter that is listed twice counts once: √25.
    assert ranks(2).run(by_hand) == pytest.approx([5.0, 5.0], rel=1e-15)


def huge(world):
    cut = nn.Parameter(torch.zeros(1))
    mark(cut, 0)
    cut.grad = torch.tensor([1e30])
    low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    low.grad = torch.full((4,), 1e30, dtype=torch.bfloat16)
    norm = clip_grad_norm([cut, low], 1.0).item()
    return norm, cut.grad.item(), low.grad.dtype


def test_squares_of_large_gradients_do_not_overflow(ranks):
    for norm, clipped, dtype in ranks(2).run(huge):
        assert norm == pytest.approx(6**0.5 * 1e30, rel=0.01)  # bfloat16 has three digits
        assert clipped == pytest.approx(6**-0.5, rel=0.01)
        assert dtype == torch.bfloat16


def bad(world):
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    with Ledger() as ledger:
        for max_norm in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"max_norm={max_norm} must be positive"):
                clip_grad_norm([parameter], max_norm)
        with pytest.raises(ValueError, match="parameters is empty"):
            gradient_norm([])
    return ledger.entries


def test_bad_input_is_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(bad) == [[], []]
