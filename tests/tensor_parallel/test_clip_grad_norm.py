"""The gradients' norm where squares overflow, and bad input; tests/composition compares it with one device's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm
from minitrain.tensor_parallel.full.parameter_layout import mark


def squares_of_large_gradients_do_not_overflow(world):
    cut = nn.Parameter(torch.zeros(1))
    mark(cut, 0)
    cut.grad = torch.tensor([1e30])
    low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    low.grad = torch.full((4,), 1e30, dtype=torch.bfloat16)
    norm = clip_grad_norm([cut, low], 1.0).item()
    assert norm == pytest.approx(6**0.5 * 1e30, rel=0.01)  # bfloat16 has three digits
    assert cut.grad.item() == pytest.approx(6**-0.5, rel=0.01)
    assert low.grad.dtype == torch.bfloat16


def bad_input_is_refused_before_anything_is_sent(world):
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    with Ledger() as ledger:
        for max_norm in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"max_norm={max_norm} must be positive"):
                clip_grad_norm([parameter], max_norm)
        with pytest.raises(ValueError, match="parameters is empty"):
            gradient_norm([])
    assert not ledger.entries


@pytest.mark.parametrize(
    "case", (squares_of_large_gradients_do_not_overflow, bad_input_is_refused_before_anything_is_sent)
)
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
