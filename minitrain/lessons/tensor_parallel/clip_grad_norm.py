"""The norm of the whole model's gradients, each counted once, and gradients clipped by it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm import clip_grad_norm as full
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.tensor_parallel import clip_grad_norm as small
from minitrain.tensor_parallel import linear as small_linear
from minitrain.tensor_parallel.full import linear as full_linear
from minitrain.tensor_parallel.full.parallelize import piece_of


def demo(world: World) -> list[Claim]:
    """Clips gradients of norms and an MLP cut over the ranks; the table shows one device's norm, and bytes."""
    rows, hidden = Rows("Pascanu et al. 2013, §3.2"), 8
    for form, layers, clip in (("small form", small_linear, small), ("full form", full_linear, full)):
        for case, most in ((f"{form}, clipped to 0.7", 0.7), (f"{form}, nothing to clip", 1e9)):
            reference, model = with_gradients(world, hidden, layers)
            with Ledger() as ledger:
                norm = clip.clip_grad_norm(model.parameters(), most)
            expected = nn.utils.clip_grad_norm_(reference.parameters(), most)
            pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
            # Relative to the largest, because gradients that are not clipped are large.
            scale = max(gradient(its).abs().max() for its in reference.parameters())
            ours = [norm / expected, *(gradient(mine) / scale for mine, _ in pairs)]
            theirs = [torch.ones_like(norm), *(piece_of(gradient(its) / scale, mine) for mine, its in pairs)]
            what = "norm and clipped gradients, relative distance from one device's"
            rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, case)
            payload = ledger.payload("all_reduce")
            rows.add("payload of all-reduces", "8 B, one float64", 8, payload, "B", "derived", case=case)
    return rows.claims()


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def with_gradients(world: World, hidden: int, layers: Any) -> tuple[nn.Module, nn.Module]:
    """A small model of one device and the same cut over the ranks, both after backward."""
    generator, wide = torch.Generator().manual_seed(0), 4 * hidden * world.size
    up, down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)
    reference = nn.Sequential(nn.LayerNorm(hidden), up, nn.GELU(), down, nn.LayerNorm(hidden)).double()
    for parameter in reference.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(4, hidden, generator=generator).double().to(world.device)
    model = copy.deepcopy(reference.to(world.device))
    model[1], model[3] = layers.ColumnParallelLinear.from_linear(up), layers.RowParallelLinear.from_linear(down)
    for each in (reference, model):
        each(x).square().sum().backward()
    return reference, model
