"""Rotary positions against complex numbers and the paper's property; the model without a table of positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, Positions
from minitrain.models.rotary import Rotary

ROPE = GPTConfig(vocabulary=11, positions=8, layers=2, hidden=24, heads=3, positions_kind="rope", rope_base=100.0)


class At(nn.Module):
    """Positions that are given."""

    def __init__(self, places: Tensor):
        super().__init__()
        self.places = places

    def forward(self, seq: int, device: torch.device) -> Tensor:
        assert seq == len(self.places)
        return self.places.to(device)


def rotary(base: float, *places: int) -> Rotary:
    made = Rotary(base)
    if places:
        made.places = At(torch.tensor(places))  # type: ignore[bad-assignment]
    return made


@pytest.mark.parametrize("kind", ("learned", "rope"))
def test_positions_can_be_replaced(kind: Any):
    """As context parallelism does: some of the tokens' positions, in any order, in every module that asks for them."""
    gpt = GPT(replace(ROPE, positions_kind=kind, rope_base=10000.0, layers=1), seed=1).double()
    tokens = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(0))
    whole, order = gpt.embedding(tokens), torch.tensor([1, 0, 6, 7])
    attention = gpt.blocks[0].attention
    heads = [attention.split_heads(attention.query(whole))] * 2
    turned = attention.rotary(*heads)[0] if attention.rotary else heads[0]
    for name in [name for name, module in gpt.named_modules() if isinstance(module, Positions)]:
        gpt.set_submodule(name, At(order))
    some = gpt.embedding(tokens[:, order])
    torch.testing.assert_close(some, whole[:, order])
    heads = [attention.split_heads(attention.query(some))] * 2
    torch.testing.assert_close(attention.rotary(*heads)[0] if attention.rotary else heads[0], turned[:, :, order])


def test_angles_are_in_float32_at_least():
    """In bfloat16 position 1001 would be 1000: a key's error would be that of half a turn, not of rounding."""
    key = torch.randn(1, 1, 1, 8).bfloat16()
    exact = rotary(10000.0, 1001)(key.double(), key.double())[1]
    found = rotary(10000.0, 1001)(key, key)[1]
    assert found.dtype == torch.bfloat16
    size = float(key.double().abs().max())
    # Two numbers of at most `size` in float32, and the sum rounded to 8 bits; the angle is off by 1001 · 2⁻²³.
    assert (found.double() - exact).abs().max() <= size * (2 * 2**-8 + 1001 * 2**-21)
