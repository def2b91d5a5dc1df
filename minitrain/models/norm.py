"""The norm of modern models: RMSNorm, which subtracts no mean and has no bias."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _RMSNorm(torch.autograd.Function):
    """y = w · x / r with r = √(mean(x²) + ε), each token by itself."""

    # A Function, because autograd would keep of torch's own what the device makes of it: on a CPU, where torch 2.13
    # composes it, x, x/r and r, in 16 bits the first two as float32 copies. This keeps x as it came, w and 1/r, on any
    # device, so that a dry run can tell the bytes; a GPU's fused kernel keeps the same, and `--compile` fuses this one.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # a sum of squares needs more than 8 bits
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()  # 1/r, [*batch, 1]
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale * weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight, scale = ctx.saved_tensors
        normed, grad_y = x * scale, gradients[0].to(scale.dtype)
        grad_w = (grad_y * normed).flatten(0, -2).sum(0).to(weight.dtype)
        grad_y = grad_y * weight
        # r depends on all of x, so the part of the gradient along x is taken out.
        grad_x = scale * (grad_y - normed * (grad_y * normed).mean(-1, keepdim=True))
        return grad_x.to(x.dtype), grad_w, None


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · w over the last dim. Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps:g}"


def rms_norm(
    x: Float[Tensor, "*batch width"], weight: Float[Tensor, " width"], eps: float
) -> Float[Tensor, "*batch width"]:
    """As `RMSNorm`, computed in float32 at least."""
    return _RMSNorm.apply(x, weight, eps)
