"""Latents change no output, in any cut of the text, absorbed or not, and over ranks; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch

from minitrain.inference.latent_attention import LatentAttention


def layer():
    torch.manual_seed(3)
    return LatentAttention(hidden=12, heads=4, head=3, kv_rank=5, rope=4).double()


def texts():
    return torch.randn(3, 20, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("absorb", [False, True])
@pytest.mark.parametrize("cuts", [[1] * 20, [7, 1, 1, 8, 3]])
@torch.no_grad()
def test_any_cut(ranks, cuts, absorb):
    ranks(1).run(cut, cuts, absorb)


def cut(world, cuts, absorb):
    model, cache, found = layer(), None, []
    right, latents = model(texts())
    for part in texts().split(cuts, 1):
        y, cache = model(part, cache, absorb)
        found.append(y)
    torch.testing.assert_close(torch.cat(found, 1), right, rtol=0, atol=1e-12)
    torch.testing.assert_close(cache, latents, rtol=0, atol=1e-12)
