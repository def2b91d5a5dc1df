"""The lesson of `minitrain.precision.fp8`: errors of 8 bits against their bounds, and the bytes that are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import SavedActivations, World
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision import fp8
from minitrain.precision.formats import E4M3, E5M2, Format
from minitrain.precision.fp8 import Linear, Scale


def demo(world: World) -> list[Claim]:
    """Multiplies tensors of very different sizes in 8 bits; the table shows errors, and bytes kept."""
    rows, generator = Rows("Micikevicius et al. 2022, §3"), torch.Generator().manual_seed(world.rank)
    sizes = (32, 64), (64, 128), (32, 128)
    x, weight, gradient = (torch.randn(size, generator=generator).to(world.device) for size in sizes)
    for each, dtype in ((E4M3, fp8.E4M3), (E5M2, fp8.E5M2)):
        small, what = 1e-6 * x, "largest number of a tensor of size 1e-6, scaled, in e4m3; in e5m2"
        eight, scale = Scale().quantize(small, dtype)
        rows.add(what, "the format's largest", each.largest, eight.float().abs().max().item(), "1", case=each.name)
        normal = (small / scale).abs() >= each.smallest_normal
        error = ((scale * eight.float() - small).abs() / small.abs())[normal].max()
        # And a division and a product in float32.
        what, bound = "relative error of its normal numbers, e4m3; e5m2", each.spacing / 2 * (1 + 1e-4)
        rows.near(what, error, torch.zeros_like(error), bound, "2^−(m+1)", "IEEE 754-2019, §4.3.1", each.name)

    a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
    with SavedActivations() as saved:
        out = Linear.apply(a, b, (Scale(), Scale(), Scale()))
    out.backward(gradient)
    assert a.grad is not None and b.grad is not None
    for found, left, right, first, second in (
        (out, x, weight, E4M3, E4M3),
        (a.grad, gradient, weight.t(), E5M2, E4M3),
        (b.grad, x.t(), gradient, E4M3, E5M2),
    ):
        what, case = "error of a layer's output over its bound; of both gradients", f"{first.name}, {second.name}"
        over = (found.detach().double() - left.double() @ right.double()).abs() / off_by(left, right, first, second)
        rows.near(what, over, 0 * over, 1, "(u₁ + u₂ + u₁u₂) Σ|a||b|", "Higham 2002, §3.1", case)

    rows.add("bytes kept for backward", "1 per element of x and W", x.numel() + weight.numel(), saved.bytes)
    return rows.claims()


def off_by(left: Tensor, right: Tensor, first: Format, second: Format) -> Tensor:
    """The most that a product of rounded matrices may be off by.

    A factor is off by u of its size if it is normal, and by half of the smallest number, scaled, if it is not.
    """
    u1, u2 = first.spacing / 2, second.spacing / 2
    a, b = left.double().abs(), right.double().abs()
    low, its = a.max() / first.largest * first.smallest / 2, b.max() / second.largest * second.smallest / 2
    return (u1 + u2 + u1 * u2 + 1e-5) * (a @ b) + 2 * (low * b.sum(0) + its * a.sum(1, keepdim=True))
