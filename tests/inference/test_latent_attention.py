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
@pytest.mark.parametrize("cuts", [[20], [1] * 20, [7, 1, 1, 8, 3]])
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


def refused(world):
    for heads, rope in ((3, 4), (4, 3)):
        with pytest.raises(AssertionError, match="all ranks have as many heads, and rope is of pairs"):
            LatentAttention(12, heads, 3, 5, rope)


def test_what_does_not_divide_is_refused(ranks):
    ranks(2).run(refused)


def alike(world):
    """Of all ranks: heads are cut, the rest is whole and has the same gradient everywhere."""
    model = layer()
    y, _ = model(texts())
    y.square().sum().backward()
    return [model.query.shape[0], model.down.shape, model.down.grad, y.detach()]


@pytest.mark.parametrize("size", (2, 4))
def test_what_is_whole_is_the_same_on_all_ranks(ranks, size):
    (heads, shape, gradient, y), *others = ranks(size).run(alike)
    assert heads == 4 // size and shape == (9, 12)
    for other in others:
        assert torch.equal(other[2], gradient) and torch.equal(other[3], y)
