"""The lesson of `minitrain.tensor_parallel.clip_grad_norm`: what its demo claims, and how that is measured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from minitrain.collectives.full import native
from minitrain.comm import Ledger, World
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key
from minitrain.lessons.tensor_parallel.common import own_part
from minitrain.tensor_parallel import clip_grad_norm as small
from minitrain.tensor_parallel import linear as small_linear
from minitrain.tensor_parallel.full.clip_grad_norm import clip_grad_norm, gradient_norm
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear


def demo(world: World, hidden: int = 8) -> list[Claim]:
    """Clips the gradients of norms and an MLP cut over the ranks; the table shows one device's norm, and a wrong one.

    Args:
        hidden: Width of the input; the MLP is 4 times as wide for each rank.
    """
    reference, model = _with_gradients(world, hidden, ColumnParallelLinear, RowParallelLinear)
    with Ledger() as ledger:
        norm = clip_grad_norm(model.parameters(), 1.0)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    pairs = [(mine.grad, its.grad) for mine, its in zip(model.parameters(), reference.parameters(), strict=True)]
    off = max(
        float((mine - its).abs().max())
        for mine, its in pairs
        if mine is not None and its is not None and mine.shape == its.shape
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # the square of the norm is then a number of parameters
    ones = float(gradient_norm(model.parameters()))
    careless = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum()
    native.all_reduce(careless).wait()  # every rank adds all that it holds
    clip_grad_norm(model.parameters(), 1.0)
    clipped = float(gradient_norm(model.parameters()))

    wide = 4 * hidden * world.size
    whole = 5 * hidden  # two norms, and the bias of the matrix that is cut by rows
    parameters = 2 * hidden * wide + wide + whole
    source, close, root = "Pascanu et al. 2013, §3.2", 1e-12, parameters**0.5
    wrong = (parameters + (world.size - 1) * whole) ** 0.5
    distance = abs(float(norm / expected) - 1)
    far, near = "norm's distance from one device's, in that", "whole clipped gradients' distance from torch's"
    return [
        *_small_form(world, hidden),
        Claim(far, "10⁻¹²", close, distance, "1", source, "compared", "<=", key=True),
        Claim(near, "10⁻¹²", close, off, "1", source, "compared", "<="),
        Claim("all-reduces", "1", 1, len(ledger.entries)),
        Claim("their payload", "8 B, one float64", 8, ledger.payload("all_reduce"), "B"),
        Claim("norm, all gradients 1", "√Ψ = √(2hm + m + 5h)", root, ones, "1", source, tolerance=close, key=True),
        Claim("the same after clipping to 1", "√Ψ / (√Ψ + 10⁻⁶)", root / (root + 1e-6), clipped, tolerance=close),
        Claim(
            "norm, if every rank adds all that it holds",
            "√(Ψ + (n−1) · 5h)",
            wrong,
            float(careless.sqrt()),
            tolerance=close,
            key=True,
        ),
    ]


def _small_form(world: World, hidden: int) -> list[Claim]:
    """Claims on the small form, with the small form's layers: one device's norm and gradients, and what is sent."""
    layers = small_linear.ColumnParallelLinear, small_linear.RowParallelLinear
    reference, model = _with_gradients(world, hidden, *layers)
    with Ledger() as ledger:
        norm = small.clip_grad_norm(model.parameters(), 1.0)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    off = 0.0
    for mine, its in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None
        own = own_part(mine, its.grad, world.rank, world.size)
        off = max(off, float((mine.grad - own).abs().max()))
    distance, source = abs(float(norm / expected) - 1), "Pascanu et al. 2013, §3.2"
    far, near = "norm's distance from one device's, in that", "clipped gradients' distance from torch's"
    return as_key(
        Claim(f"small form: {far}", "10⁻¹²", 1e-12, distance, "1", source, "compared", "<="),
        Claim(f"small form: {near}", "10⁻¹²", 1e-12, off, "1", source, "compared", "<="),
        Claim("small form: payload of all-reduces", "8 B, one float64", 8, ledger.payload("all_reduce"), "B"),
    )


def _with_gradients(world: World, hidden: int, column: Any, row: Any) -> tuple[nn.Module, nn.Module]:
    """A small model of one device and the same cut over the ranks, both after backward."""
    generator, wide = torch.Generator().manual_seed(0), 4 * hidden * world.size
    whole = [nn.LayerNorm(hidden), nn.Linear(hidden, wide), nn.GELU(), nn.Linear(wide, hidden), nn.LayerNorm(hidden)]
    reference = nn.Sequential(*whole).double()
    for parameter in reference.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(4, hidden, generator=generator).double().to(world.device)
    before, up, gelu, down, after = copy.deepcopy(reference.to(world.device))
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    cut = column.from_linear(up), gelu, row.from_linear(down)
    model = nn.Sequential(before, *cut, after)
    for each in (reference, model):
        each(x).square().sum().backward()
    return reference, model
