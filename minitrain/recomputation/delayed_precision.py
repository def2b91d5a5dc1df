"""Delayed precision reduction: forward computes with all bits, and only what waits for backward has fewer.

**Idea.** An error in forward reaches all later layers, and through the loss all gradients. An error in a copy that
backward reads touches one layer's gradient. So values are rounded once their last use in forward is over: to 16, 10 or
8 bits.
**Source.** Jain et al. 2018, "Gist" (*delayed precision reduction*). Sign, exponent and fraction have 1-5-10,
1-5-4 and 1-4-3 bits.
**Cost.** For N values 2N bytes in 16 bits, 4⌈N/3⌉ in 10 bits (three in a word of 4 bytes), and N in 8. The loss of a
step has the same bits, its gradients have not: a value's relative error is at most 2⁻¹¹, 2⁻⁵ or 2⁻⁴, except where the
value is too small or too large for the exponent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

FORMATS = {16: torch.float16, 10: torch.float16, 8: torch.float8_e4m3fn}


def to_bits(x: Tensor, bits: int) -> Tensor:
    """Float32 values as whole numbers of 16, 10 or 8 bits; too large ones become the largest."""
    limit = torch.finfo(FORMATS[bits]).max
    if bits == 8:
        return x.clamp(-limit, limit).to(FORMATS[8]).view(torch.uint8)
    if bits == 16:
        return x.clamp(-limit, limit).half().view(torch.int16)
    # 63488 = 1.9375 · 2¹⁵ is the largest of 10 bits.
    word = x.clamp(-63488, 63488).contiguous().view(torch.int32)
    # The nearest number with 4 of float32's 23 bits of fraction; where two are as near, the even one.
    word = (word + 0x3FFFF + (word >> 19 & 1)) & -0x80000
    # float16 has the same exponent, and the last 6 of its bits are 0 now. Below 2⁻¹⁴ it has fewer bits of fraction.
    return word.view(torch.float32).half().view(torch.int16).int() >> 6 & 1023


def from_bits(numbers: Tensor, bits: int) -> Tensor:
    """Float32 values from `to_bits`."""
    if bits == 10:
        numbers = (numbers << 6).to(torch.int16)
    return numbers.view(FORMATS[bits]).float()


def pack_tens(numbers: Tensor) -> Tensor:
    """Three numbers of 10 bits in each word of 32."""
    parts = nn.functional.pad(numbers.flatten(), (0, -numbers.numel() % 3)).view(-1, 3)
    return parts[:, 0] | parts[:, 1] << 10 | parts[:, 2] << 20  # [⌈N/3⌉]


def unpack_tens(words: Tensor, count: int) -> Tensor:
    """The first `count` numbers again."""
    return torch.stack([words >> shift & 1023 for shift in (0, 10, 20)], 1).flatten()[:count]


class DelayedPrecision(saved_tensors_hooks):
    """`with DelayedPrecision(8): loss = model(x)`: autograd keeps float32 activations in 16, 10 or 8 bits."""

    def __init__(self, bits: int):
        assert bits in FORMATS, f"bits={bits} is none of 16, 10 and 8"
        self.bits = bits
        super().__init__(self.encode, self.decode)

    def encode(self, x: Tensor) -> Any:
        """What autograd keeps in place of x."""
        # Weights are there anyway, also as views: x @ W.T keeps a view of W.
        if isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter) or x.dtype != torch.float32:
            return x
        numbers = to_bits(x.detach(), self.bits)
        return (pack_tens(numbers) if self.bits == 10 else numbers), x.shape

    def decode(self, kept: Any) -> Tensor:
        """What backward gets."""
        if isinstance(kept, Tensor):
            return kept
        numbers, shape = kept
        if self.bits == 10:
            numbers = unpack_tens(numbers, shape.numel())
        return from_bits(numbers, self.bits).view(shape)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
