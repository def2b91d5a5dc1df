"""The pictures of the chapter of precision: formats' ranges and numbers, sizes of gradients, and losses."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.pictures import BYTES
from minitrain.lessons.pictures.panels import Figure, bar, name_rows, panels
from minitrain.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, TF32

LOOKS = {
    "float32": ("black", "-"),
    "bfloat16": ("#004488", "--"),
    "float16": ("#DDAA33", ":"),
    "fp8": ("#BB5566", "-."),
    "float16 alone": ("#777777", "-"),
}
NORMAL, SUBNORMAL = ("#004488", ""), ("#99AACC", "///")


def formats() -> Figure:
    """The range of each format as a bar over powers of two, with how far apart its numbers are at 1."""
    from matplotlib.patches import Patch

    figure, (axes,) = panels(9, 3.4)
    shown = (FLOAT32, TF32, BFLOAT16, FLOAT16, E5M2, E4M3)
    for row, each in enumerate(shown):
        normal, top = 1 - each.bias, torch.tensor(each.largest).log2().item()
        bar(axes, row, normal, top - normal, NORMAL, height=0.55)
        bar(axes, row, normal - each.mantissa, each.mantissa, SUBNORMAL, height=0.55)
        text = f"  {1 + each.exponent + each.mantissa} bits, $2^{{-{each.mantissa}}}$ apart at 1"
        axes.text(max(top, 20), row, text.replace("19 bits", "19 of 32 bits"), va="center", fontsize=9)
    name_rows(axes, [each.name.replace("float8_", "").replace("fn", "") for each in shown])
    axes.set_xlim(-155, 235)
    axes.set_xticks(range(-150, 151, 50), [f"$2^{{{power}}}$" for power in range(-150, 151, 50)])
    looks = {"normal numbers": NORMAL, "subnormal numbers": SUBNORMAL}
    handles = [Patch(fc=color, hatch=hatch, ec="white", label=name) for name, (color, hatch) in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def gradients(found: Tensor, scales: tuple[float, ...]) -> Figure:
    """The histogram of the gradients' sizes, and what of it float16 can hold at these scales."""
    powers = found[found != 0].abs().log2()
    figure, (axes,) = panels(9, 3.6)
    color, hatch = BYTES["gradients"]
    axes.hist(powers.numpy(), bins=range(-45, 17), color=color, hatch=hatch, edgecolor="white")
    top = axes.get_ylim()[1]
    for row, scale in enumerate(scales):
        shift = torch.tensor(scale).log2().item()
        left, right, height = -25 - shift, 16 - shift, top * (1.08 + 0.09 * row)
        bar(axes, height, left, right - left, NORMAL, height=0.06 * top)
        axes.text(left - 0.5, height, f"scale {scale:,.0f}", ha="right", va="center", fontsize=9)
    axes.set_xticks(range(-50, 17, 10), [f"$2^{{{power}}}$" for power in range(-50, 17, 10)])
    axes.set(xlim=(-56, 17), xlabel="size of a gradient; the bars show what float16 can hold", ylabel="gradients")
    return figure


def number_line() -> Figure:
    """All numbers of four formats near 1, and nearer: where a weight of 1 lands after an update of 1/512."""
    figure, both = panels(9, 2.7, 2, sharey=True)
    shown = (E5M2, E4M3, BFLOAT16, FLOAT16)
    for axes, (low, high) in zip(both, ((0.86, 1.27), (0.988, 1.02)), strict=True):
        for row, each in enumerate(shown):
            # Below 1, numbers are twice as close.
            numbers = [1 + step * each.spacing / (2 if step < 0 else 1) for step in range(-(2**11), 2**11)]
            near = [number for number in numbers if low <= number <= high]
            width = 0.3 if len(near) > 100 else 1.2
            axes.vlines(near, row - 0.3, row + 0.3, color=NORMAL[0], linewidth=width)
        axes.set_yticks(range(len(shown)), ["e5m2", "e4m3", "bfloat16", "float16"])
        axes.set(xlim=(low, high), ylim=(len(shown) - 0.5, -0.75))
        axes.spines[["left"]].set_visible(False)
        axes.tick_params(left=False)
    near = both[1]
    near.axvline(1 + 2**-9, color="#BB5566", linestyle="--", linewidth=1)
    near.text(1.0025, -0.5, "1 + 1/512: the update arrives in float16 only", color="#BB5566", fontsize=8, va="center")
    return figure


def losses(runs: dict[tuple[str, int], list[float]]) -> Figure:
    """How far the losses are from those of float32 with the same seed: median, and all seeds as a band.

    A cross marks the last step at which a loss was finite.
    """
    figure, (axes,) = panels(8, 3.4)
    of = {name: torch.tensor([run for (its, _), run in runs.items() if its == name]) for name in LOOKS}
    for name, found in of.items():
        color, style = LOOKS[name]
        ends = int(found.isfinite().all(0).long().cumprod(0).sum())
        values = (found - of["float32"])[:, :ends]
        axes.fill_between(range(ends), values.amin(0), values.amax(0), color=color, alpha=0.2, linewidth=0)
        if ends == found.shape[1]:
            axes.plot(values.median(0).values, style, color=color, label=name)
        else:
            last = (ends - 1, float(values[:, -1].median()))
            axes.plot(*last, "X", color=color, markersize=9)
            text, line = f"{name}: NaN from step {ends} on", {"arrowstyle": "-", "color": color}
            axes.annotate(text, last, (12, 34), textcoords="offset points", arrowprops=line, color=color)
    axes.set(xlabel="step", ylabel="loss minus float32's, same seed")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
