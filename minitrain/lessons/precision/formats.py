"""The lesson of `minitrain.precision.formats`: our rounding against torch's casts, at every number of each format."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.lessons.pictures import precision as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision import formats
from minitrain.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, Format

SMALL = (FLOAT16, BFLOAT16, E4M3, E5M2)  # few enough to try every number


def demo(world: World) -> list[Claim]:
    """Rounds and encodes every number of four formats; the table compares them with torch's casts, bit by bit."""
    world.figure(pictures.formats)
    rows = Rows("IEEE 754-2019, §3.4; Micikevicius et al. 2022, §3")
    for each in (FLOAT32, *SMALL):
        info, what = torch.finfo(dtype(each)), "largest, smallest and spacing of five formats, each as torch has it"
        for case, formula, predicted, measured in (
            ("largest", "(2 − 2^−m) · 2^bias", each.largest, info.max),
            ("smallest normal", "2^(1 − bias)", each.smallest_normal, info.smallest_normal),
            ("spacing at 1", "2^−m", each.spacing, info.eps),
        ):
            rows.add(what, formula, predicted, measured, "1", case=f"{each.name}, {case}")
    for each in SMALL:
        numbers = every_number(each)
        x = trials(each, numbers)
        what = "numbers rounded otherwise than torch's cast: all values, midpoints, neighbors"
        cast, source = x.to(dtype(each)).double(), "IEEE 754-2019, §4.3.1"
        rows.equal(what, formats.round_to(x, each), cast, source=source, case=each.name)
        right = numbers.to(dtype(each)).view(whole(each)).long() % 2 ** bits(each)
        what = "numbers whose bits differ from torch's"
        rows.equal(what, formats.encode(numbers, each), right, source=rows.source, case=each.name)
    return rows.claims()


def dtype(each: Format) -> torch.dtype:
    return getattr(torch, each.name)


def bits(each: Format) -> int:
    return 1 + each.exponent + each.mantissa


def whole(each: Format) -> torch.dtype:
    """The integers of as many bits."""
    return {8: torch.int8, 16: torch.int16}[bits(each)]


def every_number(each: Format) -> Tensor:
    """All finite numbers of a format, from its bit patterns, in float64."""
    codes = torch.arange(2 ** bits(each)).to(torch.int32).to(whole(each))
    numbers = codes.view(dtype(each)).double()
    return numbers[numbers.isfinite()]


def trials(each: Format, numbers: Tensor) -> Tensor:
    """Every number, every midpoint with its two neighbors in float32, and what is too large, where torch agrees."""
    numbers = numbers.unique()
    middle = ((numbers[1:] + numbers[:-1]) / 2).float()
    around = [torch.nextafter(middle, torch.full_like(middle, limit)) for limit in (torch.inf, -torch.inf)]
    # e4m3 has no infinity; beyond it older versions of torch give NaN and newer ones the largest number.
    beyond = each.largest * torch.tensor([1.01, 1.5, 4.0, -1.5]) if each.infinity else middle[:0]
    return torch.cat([numbers.float(), middle, *around, beyond])
