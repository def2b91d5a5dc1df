"""Gist's first encoding: of a ReLU and the pool after it, backward needs 1 bit per input and 4 per output.

**Idea.** Between forward and backward an activation is only stored, so it may wait in another form. A ReLU's backward
asks whether its output is above 0, and a pool's where each of its windows had the largest input. None of them asks for
a value.
**Source.** Jain et al. 2018, "Gist: efficient data encoding for deep neural network training" (*Binarize*).
**Cost.** N/8 bytes for the N elements of the ReLU, where there were 4N, and M/2 for the M outputs of the pool, of which
torch keeps indices of 8 bytes. Gradients have the same bits. Nothing is computed again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Numbers below 2^bits, several in a byte."""
    parts = 8 // bits
    padded = F.pad(numbers.flatten(), (0, -numbers.numel() % parts)).view(-1, parts)
    # The first number in the lowest bits.
    return (padded << torch.arange(0, 8, bits, device=padded.device)).sum(1).to(torch.uint8)  # [bytes]


def unpack(packed: Tensor, bits: int, shape: torch.Size) -> Tensor:
    """The numbers again, of this shape."""
    padded = packed[:, None].long() >> torch.arange(0, 8, bits, device=packed.device) & 2**bits - 1  # [bytes, parts]
    return padded.flatten()[: shape.numel()].view(shape)


class ReluPool(torch.autograd.Function):
    """max_pool(relu(x)), of which autograd keeps bits only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: int) -> Tensor:
        y = x.relu()  # [batch, channels, height, width]
        pooled, index = F.max_pool2d(y, window, return_indices=True)  # [batch, channels, height/window, width/window]
        # torch numbers the places of a plane; within a window 4 bits are enough.
        row, column = index // y.shape[3], index % y.shape[3]
        ctx.save_for_backward(pack((y > 0).long(), 1), pack(row % window * window + column % window, 4))
        ctx.window, ctx.shape, ctx.pooled = window, y.shape, pooled.shape
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above, largest), (gradient,), window = ctx.saved_tensors, gradients, ctx.window
        place = unpack(largest, 4, ctx.pooled)
        # From the place in a window to that in the plane.
        row = torch.arange(ctx.pooled[2], device=place.device)[:, None] * window + place // window
        column = torch.arange(ctx.pooled[3], device=place.device) * window + place % window
        index = row * ctx.shape[3] + column  # [batch, channels, height/window, width/window]
        # The pool's backward: a gradient goes where the largest input was.
        into = gradient.new_zeros(ctx.shape).flatten(2).scatter_(2, index.flatten(2), gradient.flatten(2))
        # The ReLU's: it goes on where the output is above 0.
        return into.view(ctx.shape).masked_fill_(unpack(above, 1, ctx.shape) == 0, 0.0), None


def relu_pool(x: Tensor, window: int = 2) -> Tensor:
    """The largest of relu(x) in each window of window × window; windows do not overlap.

    Args:
        x: [batch, channels, height, width].
        window: At most 4: 4 bits number 16 places.
    """
    assert window <= 4, f"window={window} has more places than 4 bits can number; use 4 at most"
    return ReluPool.apply(x, window)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
