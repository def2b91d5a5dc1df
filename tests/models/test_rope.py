"""Rotary positions: angles have 32 bits at least, whatever the dtype; tests/models/test_llama.py has the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.models.rotary import Rotary


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


def test_angles_are_in_float32_at_least():
    """In bfloat16 position 1001 would be 1000: a key's error would be that of half a turn, not of rounding."""
    key = torch.randn(1, 1, 1, 8).bfloat16()
    exact = rotary(10000.0, 1001)(key.double(), key.double())[1]
    found = rotary(10000.0, 1001)(key, key)[1]
    assert found.dtype == torch.bfloat16
    size = float(key.double().abs().max())
    # Two numbers of at most `size` in float32, and the sum rounded to 8 bits; the angle is off by 1001 · 2⁻²³.
    assert (found.double() - exact).abs().max() <= size * (2 * 2**-8 + 1001 * 2**-21)
