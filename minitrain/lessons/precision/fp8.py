"""The lesson of `minitrain.precision.fp8`: errors of 8 bits against their bounds, with scales of now and of before."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import SavedActivations, World
from minitrain.lessons.claims import Claim, fold
from minitrain.precision import fp8
from minitrain.precision.formats import E4M3, E5M2
from minitrain.precision.fp8 import Linear, Scale

PAPER = "Micikevicius et al. 2022, §3"
FORMATS = {"e4m3": (E4M3, fp8.E4M3), "e5m2": (E5M2, fp8.E5M2)}


def demo(world: World, hidden: int = 64) -> list[Claim]:
    """Multiplies tensors of very different sizes in 8 bits; the table shows errors, bytes kept, and what saturates.

    Args:
        hidden: Width of the layer.
    """
    generator = torch.Generator().manual_seed(world.rank)
    drawn = (torch.randn(size, generator=generator) for size in ((32, hidden), (hidden, 2 * hidden)))
    x, weight = (each.to(world.device) for each in drawn)
    largest, errors, plain = {}, {}, {}
    for name, (each, dtype) in FORMATS.items():
        small = 1e-6 * x
        eight, scale = Scale().quantise(small, dtype)
        largest[name] = Claim("", "the format's largest", each.largest, eight.float().abs().max().item(), "1", PAPER)
        normal = (small / scale).abs() >= each.smallest_normal
        error = ((scale * eight.float() - small).abs() / small.abs())[normal].max().item()
        bound = each.spacing / 2 * (1 + 1e-4)  # and a division and a product in float32
        errors[name] = Claim("", "2^−(m+1)", bound, error, "1", "IEEE 754-2019, §4.3.1", "compared", "<=")
        limit = each.smallest / 2  # without a scale
        below = int((small.abs() <= limit).sum())
        plain[name] = Claim("", "#{|x| ≤ smallest / 2}", below, int((small.to(dtype).float() == 0).sum()), "1", PAPER)
    return [
        fold("largest number of a tensor of size 1e-6, scaled, in e4m3; in e5m2", largest, key=True),
        fold("relative error of its normal numbers, e4m3; e5m2", errors, key=True),
        fold("its elements that become 0 without a scale", plain),
        *products(x, weight, generator),
        *delayed(x),
        kept(x, weight),
    ]


def products(x: Tensor, weight: Tensor, generator: torch.Generator) -> list[Claim]:
    """Claims on a layer's output and gradients against those in float64 of the same numbers."""
    gradient = torch.randn(x.shape[0], weight.shape[1], generator=generator).to(x.device)
    a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = Linear.apply(a, b, (Scale(), Scale(), Scale()))
    out.backward(gradient)
    assert a.grad is not None
    assert b.grad is not None
    forward, backward = E4M3.spacing / 2, E5M2.spacing / 2
    cases = {}
    for name, found, left, right, first, second in (
        ("output", out, x, weight, forward, forward),
        ("gradient of the input", a.grad, gradient, weight.t(), backward, forward),
        ("gradient of the weight", b.grad, x.t(), gradient, forward, backward),
    ):
        exact, sizes = left.double() @ right.double(), left.double().abs() @ right.double().abs()
        # A factor is off by u of its size if it is normal, and by half of the smallest number, scaled, if it is not.
        floor = least(left, first) * right.abs().sum(0) + least(right, second) * left.abs().sum(1, keepdim=True)
        bound = (first + second + first * second) * sizes + 2 * floor.double() + 1e-5 * sizes
        worst = ((found.double() - exact).abs() / bound).max().item()
        cases[name] = Claim("", "(u₁ + u₂ + u₁u₂) Σ|a||b|", 1.0, worst, "1", "Higham 2002, §3.1", "compared", "<=")
    return [fold("error of a layer's output over its bound; of both gradients", cases, key=True)]


def least(x: Tensor, unit: float) -> float:
    """What a subnormal element of a scaled tensor may be off by."""
    each = E4M3 if unit == E4M3.spacing / 2 else E5M2
    return x.abs().max().item() / each.largest * each.smallest / 2


def delayed(x: Tensor) -> list[Claim]:
    """Claims on a scale that follows the last calls: what is three times as large saturates once, and then fits."""
    scale = Scale(history=4)
    scale.quantise(x, fp8.E4M3)
    _, factor = scale.quantise(3 * x, fp8.E4M3)  # with the scale of x
    too_large = int(((3 * x).abs() > x.abs().max()).sum())
    largest = E4M3.largest * factor
    cut = int(((3 * x).abs() > largest * (1 + 1e-6)).sum())
    _, after = scale.quantise(3 * x, fp8.E4M3)
    for _ in range(5):  # four fill the history, and the fifth sees nothing else
        _, forgotten = scale.quantise(x, fp8.E4M3)
    source = "NVIDIA Transformer Engine, delayed scaling"
    return [
        Claim(
            "elements that saturate when a tensor is suddenly three times as large",
            "#{|3x| > max|x|}",
            too_large,
            cut,
            "1",
            source,
            key=True,
        ),
        Claim("scale in the next call, over the scale before", "3", 3.0, after / factor, "1", source, tolerance=1e-6),
        Claim(
            "scale after as many calls as the history is long",
            "1",
            1.0,
            forgotten / factor,
            "1",
            source,
            tolerance=1e-6,
        ),
    ]


def kept(x: Tensor, weight: Tensor) -> Claim:
    """Bytes that a layer keeps for backward."""
    a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
    with SavedActivations() as saved:
        out = Linear.apply(a, b, (Scale(), Scale(), Scale()))
    assert out.requires_grad
    predicted = x.numel() + weight.numel()
    return Claim("bytes kept for backward", "1 per element of x and W", predicted, saved.bytes, "B", PAPER, key=True)
