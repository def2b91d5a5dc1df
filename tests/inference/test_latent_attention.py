"""Latents change no output, in any cut of the text, absorbed or not, and over ranks; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch

from minitrain.inference.latent_attention import LatentAttention


@pytest.mark.parametrize("absorb", [False, True])
@torch.no_grad()
def test_any_cut(ranks, absorb):
    ranks(1).run(cut, absorb)


def cut(world, absorb):
    torch.manual_seed(3)
    model, cache, found = LatentAttention(hidden=12, heads=4, head=3, kv_rank=5, rope=4).double(), None, []
    text = torch.randn(3, 20, 12, dtype=torch.float64)
    right, latents = model(text)
    for part in text.split([7, 1, 1, 8, 3], 1):
        y, cache = model(part, cache, absorb)
        found.append(y)
    torch.testing.assert_close(torch.cat(found, 1), right, rtol=0, atol=1e-12)
    torch.testing.assert_close(cache, latents, rtol=0, atol=1e-12)
