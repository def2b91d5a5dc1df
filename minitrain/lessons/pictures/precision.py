"""The pictures of the chapter of precision: ranges of formats, sizes of gradients, and losses in five precisions."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.lessons.pictures.panels import Figure, panels
from minitrain.precision.formats import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32, TF32

LOOKS = {
    "float32": ("black", "-"),
    "bfloat16": ("#0072B2", "--"),
    "float16": ("#009E73", ":"),
    "fp8": ("#CC79A7", "-."),
    "float16 alone": ("#D55E00", "-"),
}


def formats() -> Figure:
    """The range of each format as a bar over powers of two, with how far apart its numbers are at 1."""
    from matplotlib.patches import Rectangle

    figure, (axes,) = panels(9, 3.4)
    shown = (FLOAT32, TF32, BFLOAT16, FLOAT16, E5M2, E4M3)
    for row, each in enumerate(shown):
        normal, top = 1 - each.bias, torch.tensor(each.largest).log2().item()
        axes.barh(row, top - normal, 0.55, normal, color="#0072B2", edgecolor="white")
        axes.barh(row, each.mantissa, 0.55, normal - each.mantissa, color="#56B4E9", hatch="///", edgecolor="white")
        text = f"  {1 + each.exponent + each.mantissa} bits, $2^{{-{each.mantissa}}}$ apart at 1"
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
    return figure


def gradients(found: Tensor, scales: tuple[float, ...]) -> Figure:
    """The histogram of the gradients' sizes, and what of it float16 can hold at these scales."""
    powers = found[found != 0].abs().log2()
    figure, (axes,) = panels(9, 3.6)
    axes.hist(powers.numpy(), bins=range(-45, 17), color="#0072B2", edgecolor="white")
    top = axes.get_ylim()[1]
    for row, scale in enumerate(scales):
        shift = torch.tensor(scale).log2().item()
        left, right, height = -25 - shift, 16 - shift, top * (1.08 + 0.09 * row)
        axes.barh(height, right - left, 0.06 * top, left, color="#E69F00", hatch="///", edgecolor="white")
        axes.text(left - 0.5, height, f"scale {scale:,.0f}", ha="right", va="center", fontsize=9)
    axes.set_xlim(-56, 17)
    axes.set_xticks(range(-50, 17, 10), [f"$2^{{{power}}}$" for power in range(-50, 17, 10)])
    axes.set(xlabel="size of a gradient; the bars show what float16 can hold", ylabel="gradients")
    return figure


def losses(runs: dict[tuple[str, int], list[float]]) -> Figure:
    """The losses, and how far they are from those of float32 with the same seed: median, and all seeds as a band.

    A cross marks the last step at which a loss was finite.
    """
    figure, (left, right) = panels(9, 3.8, 2)
    of = {name: torch.tensor([run for (its, _), run in runs.items() if its == name]) for name in LOOKS}
    for name, found in of.items():
        color, style = LOOKS[name]
        ends = int(found.isfinite().all(0).long().cumprod(0).sum())
        for axes, values in ((left, found), (right, found - of["float32"])):
            values = values[:, :ends]
            axes.plot(values.median(0).values, style, color=color, label=name)
            axes.fill_between(range(ends), values.amin(0), values.amax(0), color=color, alpha=0.2, linewidth=0)
        if ends < found.shape[1]:
            left.plot(ends - 1, found[:, ends - 1].median(), "X", color=color, markersize=9)
            place, at = (ends - 1, found[:, ends - 1].median()), {"textcoords": "offset points", "va": "center"}
            left.annotate(f"{name}: NaN from step {ends} on", place, xytext=(12, 0), color=color, **at)
    for axes, what in ((left, "loss"), (right, "loss minus float32's, same seed")):
        axes.set(xlabel="step", ylabel=what)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
