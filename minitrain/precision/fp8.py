"""Products of numbers of 8 bits, each tensor with a scale: e4m3 forward, e5m2 for gradients.

**Idea.** 8 bits have almost no range, so a tensor is divided by a scale that brings its largest element to the format's
largest number, and the product is multiplied by the two scales. Finding the largest element first costs a pass over
the tensor (just in time); delayed scaling takes the largest of the last steps instead, and a new record saturates.

**Source.** Micikevicius et al. 2022, "FP8 formats for deep learning", §3 and §4; Transformer Engine, for the history.
In a layer there are three products: Y = XW, dX = dY Wᵀ, and dW = Xᵀ dY.
**Cost.** Products at twice the speed of 16 bits, on GPUs that have them; one scale per tensor.
Where the device has no such products (CPUs, and GPUs before H100), the rounded numbers are multiplied in float32.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Scale:
    """What a tensor is divided by: after its own largest element, or the largest of the last `history` calls."""

    def __init__(self, history: int = 0):
        self.amax: deque[float] = deque(maxlen=history or 1)
        self.delayed = history > 0

    def quantize(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
        """x in 8 bits, and the factor that takes it back."""
        now = x.abs().max().item()
        before = max(self.amax) if self.delayed and self.amax else now
        # With delayed scaling, the next calls look at it; after infinity they keep the old scale.
        if math.isfinite(now):
            self.amax.append(now)
        largest = torch.finfo(dtype).max
        scale = before / largest or 1.0  # a tensor of zeros needs none
        # What is too large saturates.
        return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def product(a: Tensor, a_scale: float, b: Tensor, b_scale: float) -> Tensor:
    """a @ b of 8-bit numbers (m, k) and (k, n), added in float32."""
    if a.is_cuda and torch.cuda.get_device_capability(a.device) >= (8, 9):
        scales = (torch.tensor(scale, device=a.device) for scale in (a_scale, b_scale))
        # Products take k and n in multiples of 16. The zeros add nothing.
        k, n = a.shape[1], b.shape[1]
        a, b = F.pad(a, (0, -k % 16)), F.pad(b.t(), (0, -k % 16, 0, -n % 16))
        # On an H100 the first factor lies row by row and the second one column by column, and never otherwise.
        return torch._scaled_mm(a.contiguous(), b.contiguous().t(), *scales, out_dtype=torch.float32)[:, :n]
    return a_scale * b_scale * (a.float() @ b.float())


class Linear(torch.autograd.Function):
    """x W of 16- or 32-bit tensors, through 8 bits in both directions; `scales` are those of x, W and the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scales: tuple[Scale, Scale, Scale]) -> Tensor:
        (x8, sx), (w8, sw) = scales[0].quantize(x, E4M3), scales[1].quantize(weight, E4M3)
        ctx.save_for_backward(x8, w8)  # a quarter of float32's bytes
        ctx.scales = sx, sw, scales[2]
        return product(x8, sx, w8, sw).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[bad-override]
        (x8, w8), (sx, sw, scale) = ctx.saved_tensors, ctx.scales
        # Gradients differ in size more than they need digits: e5m2 has the range.
        g8, sg = scale.quantize(gradient, E5M2)
        to_x = product(g8, sg, w8.t(), sw)  # dX = dY Wᵀ
        to_weight = product(x8.t(), sx, g8, sg)  # dW = Xᵀ dY
        return to_x.to(gradient.dtype), to_weight.to(gradient.dtype), None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
