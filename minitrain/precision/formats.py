"""Number formats: what a few bits of exponent and mantissa can say, and rounding to the nearest by hand.

**Idea.** A number is ±1.m · 2^e. The bits of the exponent set how large and how small it may be; the bits of the
mantissa set how far its neighbors are. Below the smallest exponent numbers lose their leading 1 (subnormals), and
keep their spacing down to 0.

**Source.** IEEE 754-2019, §3.4 and §4.3.1; Micikevicius et al. 2022, "FP8 formats for deep learning", §3, for e4m3,
which gives up infinity for one more power of two.
**Cost.** Range is paid with precision: bfloat16 has float32's exponents and 8 bits for the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Format(NamedTuple):
    """A sign, `exponent` bits, `mantissa` bits; its finite numbers end at `largest`."""

    name: str
    exponent: int
    mantissa: int
    infinity: bool = True  # whether the topmost exponent is kept for infinity and NaN

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        if self.infinity:
            return (2 - 2.0**-self.mantissa) * 2.0**self.bias
        # The topmost exponent counts as any other; all ones are NaN.
        return (2 - 2 * 2.0**-self.mantissa) * 2.0 ** (self.bias + 1)

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        return self.smallest_normal * self.spacing

    @property
    def spacing(self) -> float:
        """From 1 to the next number."""
        return 2.0**-self.mantissa


FLOAT32, TF32 = Format("float32", 8, 23), Format("tf32", 8, 10)
FLOAT16, BFLOAT16 = Format("float16", 5, 10), Format("bfloat16", 8, 7)
E4M3, E5M2 = Format("float8_e4m3fn", 4, 3, infinity=False), Format("float8_e5m2", 5, 2)


def round_to(x: Tensor, to: Format) -> Tensor:
    """The nearest number of the format, and of two equally near the one whose last bit is 0; in float64."""
    x = x.double()
    exponent = torch.frexp(x).exponent - 1  # x is ±1.m · 2^exponent
    # Neighbors are 2^-mantissa of their power of two apart; subnormals as far as the smallest normal numbers.
    spacing = to.spacing * torch.exp2(exponent.clamp(min=1 - to.bias).double())
    rounded = (x / spacing).round() * spacing  # torch.round takes a half to the even number
    beyond = rounded.abs() > to.largest
    # Without infinity, numbers stop at the largest (the standard calls it saturating).
    limit = torch.inf if to.infinity else to.largest
    return torch.where(beyond, torch.copysign(torch.tensor(limit).double(), x), rounded)


def encode(x: Tensor, to: Format) -> Tensor:
    """The bits of numbers that the format has, as integers: sign, exponent + bias, mantissa."""
    # Infinity has the bits of the power of two that comes after the largest number.
    size = x.double().abs().clamp(max=2.0 ** (to.bias + 1) if to.infinity else to.largest)
    normal = size >= to.smallest_normal
    exponent = torch.where(normal, torch.frexp(size).exponent - 1, 1 - to.bias)
    steps = (size / to.spacing / torch.exp2(exponent.double())).long()  # how often the last bit's worth
    # A normal number's leading 1 is not stored: it adds one to the exponent's field, which is 0 for subnormals.
    bits = ((exponent + to.bias - 1).long() << to.mantissa) + steps
    return torch.signbit(x).long() << (to.exponent + to.mantissa) | bits


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
