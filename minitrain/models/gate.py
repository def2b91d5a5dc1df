"""The gate of modern MLPs: silu(gate) · up, keeping for backward no more than a fused kernel does."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _Gated(torch.autograd.Function):
    # A Function, because autograd would keep a third tensor of this size, silu(gate), which is quickly computed again.
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[bad-override]
        (gate, up), grad_y = ctx.saved_tensors, gradients[0]
        return torch.ops.aten.silu_backward(grad_y * up, gate), grad_y * F.silu(gate)


def gated(gate: Float[Tensor, "*batch width"], up: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """silu(gate) · up, each hidden unit by itself. Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU)."""
    return _Gated.apply(gate, up)
