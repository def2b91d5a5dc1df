"""The lesson of `minitrain.precision.formats`: our rounding against torch's casts, at every number of each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.precision import formats
from minitrain.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, TF32, Format

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IEEE, FP8 = "IEEE 754-2019, §3.4", "Micikevicius et al. 2022, §3"
SMALL = (FLOAT16, BFLOAT16, E4M3, E5M2)  # few enough to try every number


def demo(world: World) -> list[Claim]:
    """Rounds and encodes every number of four formats; the table compares them with torch's casts, bit by bit."""
    world.figure(picture)
    limits, others, bits = {}, {}, {}
    for each in (FLOAT32, *SMALL):
        info, source = torch.finfo(dtype(each)), FP8 if each in (E4M3, E5M2) else IEEE
        for what, formula, predicted, measured in (
            ("largest", "(2 − 2^−m) · 2^bias", each.largest, info.max),
            ("smallest normal", "2^(1 − bias)", each.smallest_normal, info.smallest_normal),
            ("spacing at 1", "2^−m", each.spacing, info.eps),
        ):
            limits[f"{each.name}, {what}"] = Claim("", formula, predicted, measured, "1", source)
    for each in SMALL:
        numbers = every_number(each)
        positive = numbers[numbers > 0].min().item()
        limits[f"{each.name}, smallest"] = Claim("", "2^(1 − bias − m)", each.smallest, positive, "1", IEEE)
        found = formats.round_to(trials(each, numbers), each)
        wrong = int((found != trials(each, numbers).to(dtype(each)).double()).sum())
        others[each.name] = Claim("", "0", 0, wrong, "1", "IEEE 754-2019, §4.3.1", "compared")
        codes = formats.encode(numbers, each)
        wrong = int((codes != numbers.to(dtype(each)).view(whole(each)).long() % 2 ** size(each)).sum())
        bits[each.name] = Claim("", "0", 0, wrong, "1", IEEE, "compared")
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    masked = int((formats.round_to(x, TF32) != by_mask(x).double()).sum())
    flushed = {}
    for each in SMALL:
        limit = costs.flushed_below(each.exponent, each.mantissa)
        kept = torch.tensor([limit, 1.5 * limit]).to(dtype(each)).double().count_nonzero().item()
        flushed[each.name] = Claim("", "2^(1 − bias − m − 1) → 0", 1, kept, "1", IEEE, "compared")
    return [
        fold("largest, smallest and spacing of five formats, each as torch has it", limits, key=True),
        fold("numbers rounded otherwise than torch's cast: all values, midpoints, neighbours", others, key=True),
        fold("numbers whose bits differ from torch's", bits, key=True),
        Claim("tf32: numbers rounded otherwise than by masking 13 bits", "0", 0, masked, "1", "derived", "compared"),
        fold("of half of the smallest number and three quarters of it, how many survive the cast", flushed),
    ]


def dtype(each: Format) -> torch.dtype:
    return getattr(torch, each.name)


def size(each: Format) -> int:
    return 1 + each.exponent + each.mantissa


def whole(each: Format) -> torch.dtype:
    """The integers of as many bits."""
    return {8: torch.int8, 16: torch.int16}[size(each)]


def every_number(each: Format) -> Tensor:
    """All finite numbers of a format, from its bit patterns, in float64."""
    codes = torch.arange(2 ** size(each)).to(torch.int32).to(whole(each))
    numbers = codes.view(dtype(each)).double()
    return numbers[numbers.isfinite()]


def trials(each: Format, numbers: Tensor) -> Tensor:
    """Every number, every midpoint with its two neighbours in float32, and what is too large, where torch agrees."""
    numbers = numbers.unique()
    middle = ((numbers[1:] + numbers[:-1]) / 2).float()
    around = [torch.nextafter(middle, torch.full_like(middle, limit)) for limit in (torch.inf, -torch.inf)]
    # e4m3 has no infinity; beyond it older versions of torch give NaN and newer ones the largest number.
    beyond = each.largest * torch.tensor([1.01, 1.5, 4.0, -1.5]) if each.infinity else middle[:0]
    return torch.cat([numbers.float(), middle, *around, beyond])


def by_mask(x: Tensor) -> Tensor:
    """float32 with the last 13 bits of the mantissa rounded away, in integers."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def picture() -> Figure:
    """The range of each format as a bar over powers of two, with how far apart its numbers are at 1."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(9, 3.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    shown = (FLOAT32, TF32, BFLOAT16, FLOAT16, E5M2, E4M3)
    for row, each in enumerate(shown):
        normal, top = 1 - each.bias, torch.tensor(each.largest).log2().item()
        axes.barh(row, top - normal, 0.55, normal, color="#0072B2", edgecolor="white")
        axes.barh(row, each.mantissa, 0.55, normal - each.mantissa, color="#56B4E9", hatch="///", edgecolor="white")
        text = f"  {size(each)} bits, $2^{{-{each.mantissa}}}$ apart at 1"
        axes.text(max(top, 20), row, text.replace("19 bits", "19 of 32 bits"), va="center", fontsize=9)
    axes.set_yticks(range(len(shown)), [each.name.replace("float8_", "").replace("fn", "") for each in shown])
    axes.invert_yaxis()
    axes.set_xlim(-155, 235)
    axes.set_xticks(range(-150, 151, 50), [f"$2^{{{power}}}$" for power in range(-150, 151, 50)])
    handles = [
        Rectangle((0, 0), 1, 1, color="#0072B2", label="normal numbers"),
        Rectangle((0, 0), 1, 1, facecolor="#56B4E9", hatch="///", edgecolor="white", label="subnormal numbers"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
