"""8-bit Adam: both states are kept in one byte per number, and are 32 bits wide only while they are stepped.

**Idea.** A byte chooses one of 256 values between −1 and 1 (dynamic tree quantization). Its leading zeros count powers
of ten, and the bits after the first 1 are the fraction, so values are closer together near 0. The numbers of each block
are divided by the largest of them, so that an outlier spoils only its own block.

**Source.** Dettmers et al. 2021, "8-bit optimizers via block-wise quantization", §1.3 and §2. The second state,
never negative, has one more bit of fraction in place of the sign. The values are those of bitsandbytes, which keeps
tensors below 4,096 elements in 32 bits; here all are in 8. The paper's stable embedding is left out.
**Cost.** 2 bytes of states per parameter, and 8 per block of 2,048; 2 KB for the tables of values.
Within a block every element depends on the largest, so ZeRO may cut the parameters only between blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.optimizers.adam import gradients, moments


def value(bits: str) -> float:
    """The value of bits without the sign: "001101" has two zeros and the fraction 101, of 8: 10⁻²(0.1 + 0.9 · 5½/8)."""
    zeros = bits.index("1")
    fraction = bits[zeros + 1 :]
    # The middle of the fraction's part of the decade from 0.1 to 1.
    return 10**-zeros * (0.1 + 0.9 * (int(fraction or "0", 2) + 0.5) / 2 ** len(fraction))


def table(signed: bool) -> Tensor:
    """All 256 values, sorted."""
    trees = [f"{number:07b}" for number in range(1, 128)]
    if signed:
        values = [sign * value(bits) for bits in trees for sign in (-1, 1)]
    else:
        # Instead of the sign, one more bit of fraction.
        values = [value(bits + last) for bits in trees for last in "01"]
    # Two patterns are left; 1 is what a block's largest number becomes.
    return torch.tensor(sorted([*values, 0.0, 1.0]))  # (256,)


def quantize(x: Tensor, table: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """A byte for each number, and the largest magnitude of each block."""
    # Zeros at the end fill the last block.
    scales = F.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block).abs().amax(1).float()  # (blocks,)
    # In a block of zeros 0/0 would be NaN.
    each = scales.clamp(min=torch.finfo(torch.float32).tiny).repeat_interleave(block)[: x.numel()]
    # The number of the nearest value is how many middles between neighbors lie below x.
    middles = (table[1:] + table[:-1]) / 2
    return torch.bucketize(x.flatten() / each, middles).to(torch.uint8).view_as(x), scales


def dequantize(numbers: Tensor, scales: Tensor, table: Tensor, block: int) -> Tensor:
    """The numbers, each but for its rounding."""
    each = scales.repeat_interleave(block)[: numbers.numel()].view_as(numbers)
    return table[numbers.int()] * each


class Adam8bit:
    """`Adam8bit(model.parameters(), lr=0.001)`, and `step()` after each backward."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        block: int = 2048,
    ):
        assert lr > 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas), f"invalid: {lr=}, {betas=}, {eps=}"
        self.parameters, self.lr, self.betas, self.eps, self.block, self.t = list(parameters), lr, betas, eps, block, 0
        assert block > 0 and all(theta.numel() for theta in self.parameters), f"invalid: {block=}, or nothing to step"
        device = self.parameters[0].device
        self.tables = table(signed=True).to(device), table(signed=False).to(device)
        # m and v of each parameter.
        self.states = [
            [quantize(torch.zeros_like(theta), each, block) for each in self.tables] for theta in self.parameters
        ]

    @torch.no_grad()
    def step(self) -> None:
        g = gradients(self.parameters)
        self.t += 1
        for theta, g_t, state in zip(self.parameters, g, self.states, strict=True):
            # In 32 bits, also where the parameter has 16: there .999 v would be v again, and ε would be 0. One tensor
            # at a time, so that they are never all in memory.
            wide = torch.promote_types(theta.dtype, torch.float32)
            m, v = (
                dequantize(*each, table, self.block).to(wide) for each, table in zip(state, self.tables, strict=True)
            )
            m_hat, v_hat = moments(m, v, g_t.to(wide), self.betas, self.t)
            theta.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))
            # The step has been made with what is not rounded; the rounding is for the next.
            state[:] = [quantize(each, table, self.block) for each, table in zip((m, v), self.tables, strict=True)]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
