"""The lesson of `minitrain.tensor_parallel.clip_grad_norm`: what its demo claims, and how that is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.collectives.full import native
from minitrain.comm import Ledger, World
from minitrain.comm.clip_grad_norm import clip_grad_norm, gradient_norm
from minitrain.comm.comm import Comm
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.tensor_parallel.common import own_part
from minitrain.tensor_parallel import clip_grad_norm as small
from minitrain.tensor_parallel import linear as small_linear
from minitrain.tensor_parallel.full.linear import ColumnParallelLinear, RowParallelLinear

SOURCE = "Pascanu et al. 2013, §3.2"
Clip = Callable[..., Tensor]
SMALL = small_linear.ColumnParallelLinear, small_linear.RowParallelLinear
FULL = ColumnParallelLinear, RowParallelLinear


def clipped(world: World, hidden: int, layers: tuple[Any, Any], clip: Clip, most: float) -> tuple[Claim, Ledger]:
    """The claim that norm and clipped gradients are one device's, and what clipping sent."""
    reference, model = _with_gradients(world, hidden, *layers)
    with Ledger() as ledger:
        norm = clip(model.parameters(), most)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), most)
    off = abs(float(norm / expected) - 1)
    for mine, its in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None
        own = own_part(mine, its.grad, world.rank, world.size)
        # Relative: unclipped gradients are large.
        off = max(off, float((mine.grad - own).abs().max() / own.abs().max()))
    return Claim("", "10⁻¹²", 1e-12, off, "1", SOURCE, "compared", "<="), ledger


def ones(model: nn.Module) -> nn.Module:
    """The model with every gradient 1: the square of their norm is then a number of parameters."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def shared_pieces(world: World, hidden: int) -> tuple[nn.Module, int]:
    """A layer in fewer pieces than there are ranks, so that neighbouring ranks hold the same, and its parameters."""
    pieces = max([k for k in range(1, world.size) if world.size % k == 0], default=1)
    layer = nn.Linear(hidden, 4 * pieces, dtype=torch.float64).to(world.device)
    return ColumnParallelLinear.from_linear(layer, Comm(check=False), shards=pieces), 4 * pieces * (hidden + 1)


def demo(world: World, hidden: int = 8) -> list[Claim]:
    """Clips the gradients of norms and an MLP cut over the ranks; the table shows one device's norm, and a wrong one.

    Args:
        hidden: Width of the input; the MLP is 4 times as wide for each rank.
    """
    near, calls, payloads = {}, {}, {}
    for form, layers, clip in (("small form", SMALL, small.clip_grad_norm), ("full form", FULL, clip_grad_norm)):
        for how, most in (("clipped to 0.7", 0.7), ("nothing to clip", 1e9)):
            near[f"{form}, {how}"], ledger = clipped(world, hidden, layers, clip, most)
        calls[form] = Claim("", "1", 1, len(ledger.entries), "1", "derived")
        payloads[form] = Claim("", "8 B, one float64", 8, ledger.payload("all_reduce"), "B", "derived")

    model = ones(_with_gradients(world, hidden, *FULL)[1])
    small_model = ones(_with_gradients(world, hidden, *SMALL)[1])
    shared, held_once = shared_pieces(world, hidden)
    wide, whole = 4 * hidden * world.size, 5 * hidden  # two norms, and the bias of the matrix that is cut by rows
    parameters = 2 * hidden * wide + wide + whole
    formula, root = "√Ψ = √(2hm + m + 5h)", parameters**0.5
    norms = {
        "full form": (root, gradient_norm(model.parameters())),
        "small form": (root, small.gradient_norm(small_model.parameters())),
        "pieces that several ranks hold": (held_once**0.5, gradient_norm(ones(shared).parameters())),
    }
    counted = {
        case: Claim("", formula, norm, float(found), "1", SOURCE, "compared", tolerance=1e-12)
        for case, (norm, found) in norms.items()
    }
    careless = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum()
    native.all_reduce(careless).wait()  # every rank adds all that it holds
    wrong, formula = (parameters + (world.size - 1) * whole) ** 0.5, "√(Ψ + (n−1) · 5h)"
    what = "norm, if every rank adds all that it holds, all gradients 1"
    return [
        fold("norm and clipped gradients, relative distance from one device's", near, key=True),
        fold("payload of all-reduces", payloads, key=True),
        fold("all-reduces", calls),
        fold("norm, all gradients 1", counted, key=True),
        Claim(what, formula, wrong, float(careless.sqrt()), "1", "derived", "compared", tolerance=1e-12, key=True),
    ]


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
