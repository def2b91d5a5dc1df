"""Sums in float32 of numbers in 16 bits: where rounding each product is harmless, and rounding each sum is not.

**Idea.** A product of two 16-bit numbers may be rounded; its error stays its own. But a running sum in 16 bits stops
growing as soon as it is much larger than what is added to it. So matrix products, norms, softmax and the loss take
16-bit numbers, add in float32, and round once.

**Source.** Micikevicius et al. 2018, "Mixed precision training", §3.3; Higham 2002, "Accuracy and stability of
numerical algorithms", §4.2, for errors of sums.
**Cost.** None on tensor cores, which add in float32 anyway; 4 bytes per element of norms and losses while they run.
"""

from __future__ import annotations

import torch
from torch import Tensor


def running_sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x₁ + x₂ + …, one after the other, with every partial sum rounded to `dtype`."""
    total = torch.zeros((), dtype=dtype)
    for value in x.to(dtype):
        # Where total is 2^(m+1) times the value, this is a tie, and rounds back to total.
        total = total + value
    return total


def dot(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """a · b of 16-bit vectors: products and sums in `dtype`, rounded once to the vectors' own at the end."""
    return running_sum(a.to(dtype) * b.to(dtype), dtype).to(a.dtype)


def rms_norm(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """x / √(mean of x²), in float32: in float16 the square of 256 would be infinite already."""
    wide = x.float()  # (…, hidden)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """In float32, with the largest element subtracted first."""
    wide = x.float()
    # No exponential exceeds 1, so none overflows.
    powers = torch.exp(wide - wide.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean of −log softmax at the targets, in float32 and returned in it."""
    wide = logits.float()  # (tokens, vocabulary)
    wide = wide - wide.amax(-1, keepdim=True)
    chosen = wide.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (wide.exp().sum(-1).log() - chosen).mean()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
