"""The lesson of `minitrain.roofline.peaks`: intensities counted, ridge points, and this machine's roof, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import roofline as costs
from minitrain.costs.roofline import MACHINES, Work
from minitrain.lessons.claims import Claim, fold
from minitrain.roofline import peaks
from minitrain.roofline.flops import Flops

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOOK = "Austin et al. 2025, roofline"


def counted(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Work:
    """Operations and bytes of a product, counted as it is called; on the meta device, where nothing is computed."""
    a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((rows, inner), (inner, columns)))
    with Flops() as flops:
        a @ b
    (call,) = flops.calls
    return Work(call.flops, call.bytes)


def demo(world: World, hidden: int = 4096) -> list[Claim]:
    """Counts operations and bytes of products; the table shows intensities and ridge points, the picture the roof.

    Args:
        hidden: Width of the layers whose products are counted.
    """
    world.figure(lambda: picture({"this machine, measured": measured(world.device)}))
    claims = [*intensities(hidden), at_ridge(hidden), ridges()]
    if world.rank == 0:  # the others wait: ranks that share a processor would measure each other
        flops, moved = measured_peaks(world.device, quickly=True)
        world.cost("products in float32, at best", flops / 1e9, "GFLOP/s")
        world.cost("memory, in a sum, at best", moved / 1e9, "GB/s")
        world.cost("ridge point", flops / moved, "FLOP/B")
    return claims


def intensities(hidden: int) -> list[Claim]:
    """Claims on operations for each byte: dot product, products of few rows and many, 16 bits and 32."""
    dot = counted(1, hidden, 1)
    products, few = {}, {}
    for rows in (1, 8, 100, hidden, 10 * hidden):
        for columns in (hidden, 4 * hidden):
            for dtype, item in ((torch.bfloat16, 2), (torch.float32, 4)):
                predicted = costs.matrix_product(rows, hidden, columns, item).intensity
                found = counted(rows, hidden, columns, dtype).intensity
                case = f"{rows} rows, {columns} columns, {item} bytes"
                products[case] = Claim("", "2mkn / w(mk + kn + mn)", predicted, found, "FLOP/B", BOOK)
    for rows in (1, 2, 8):
        limit, found = costs.small_batch_intensity(rows), counted(rows, hidden, hidden).intensity
        # w(mk + mn) bytes more than the weight's make it smaller, by 2m/h of it.
        few[f"{rows} rows"] = Claim("", "2m/w", limit, found, "FLOP/B", BOOK, tolerance=2 * rows / hidden)
    predicted = costs.matrix_product(1, hidden, 1).intensity
    return [
        Claim(
            "operations for each byte, dot product in 16 bits",
            "2k / w(2k + 1)",
            predicted,
            dot.intensity,
            "FLOP/B",
            BOOK,
            key=True,
        ),
        fold(
            "operations for each byte, product of one row in 16 bits; other rows, columns and 32 bits",
            products,
            key=True,
        ),
        fold("operations for each byte, few rows: nearly as many as rows, for one row", few, key=True),
    ]


def at_ridge(hidden: int) -> Claim:
    """The claim on the fewest rows with which a product is limited by operations, found by bisection."""
    cases = {}
    for name in ("H100", "H200", "A100 80 GB", "TPU v5e"):
        machine = MACHINES[name]
        low, high = 0, hidden
        while high - low > 1:
            middle = (low + high) // 2
            enough = counted(middle, hidden, hidden).intensity >= machine.flops / machine.memory
            low, high = (low, middle) if enough else (middle, high)
        predicted = math.ceil(costs.rows_at_ridge(machine.ridge, hidden, hidden))
        cases[name] = Claim("", "⌈wRh² / (2h² − 2wRh)⌉", predicted, high, "rows", "derived")
    what = f"fewest rows with which an H100 is limited by products, weight of {hidden} × {hidden}; other devices"
    return fold(what, cases, key=True)


def ridges() -> Claim:
    """The claim on ridge points, from data sheets' peaks and bandwidths, next to the book's figures."""
    published = {"H100": (295, 0.002), "TPU v5e": (240, 0.015)}
    cases = {
        name: Claim(
            "", "F / bytes per second", MACHINES[name].ridge, figure, "FLOP/B", BOOK, "published", tolerance=slack
        )
        for name, (figure, slack) in published.items()
    }
    return fold("ridge point of an H100; of a TPU v5e", cases, key=True)


# ---- pictures ----

MANY = 32  # times the tokens: else they stay in a cache, which is faster than the memory whose roof is drawn
Points = dict[str, tuple[float, float]]
Roof = tuple[float, float, Points]
"""Operations per second, bytes per second, and points: operations for each byte, and operations per second."""


def measured(device: torch.device, batch: int = 4, seq: int = 256, hidden: int = 512, vocabulary: int = 4096) -> Roof:
    """This machine's two peaks, and a GPT's own operations on it, in float32."""
    flops, moved = measured_peaks(device)
    works = costs.gpt_operations(batch, seq, hidden, vocabulary, item=4)
    works["residual addition"] = costs.gpt_operations(MANY * batch, seq, hidden, 1, item=4)["residual addition"]
    points = {}
    for name, run in operations(device, batch, seq, hidden, vocabulary).items():
        points[name] = works[name].intensity, works[name].flops / peaks.best(run, device)
    return flops, moved, points


def measured_peaks(device: torch.device, quickly: bool = False) -> tuple[float, float]:
    """Operations and bytes per second; a GPU needs larger matrices to be busy, and more bytes than its caches hold."""
    size, moved = (8192, 2**30) if device.type == "cuda" else (512, 2**26) if quickly else (1536, 2**28)
    return peaks.flops_per_second(device, size=size), peaks.bytes_per_second(device, size=moved)


def operations(
    device: torch.device, batch: int, seq: int, hidden: int, vocabulary: int
) -> dict[str, Callable[[], Tensor]]:
    """The same operations as in `costs.gpt_operations`, to be called; `MANY` times the tokens in the addition."""

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    tokens, heads = batch * seq, hidden // 64
    stream, branch = matrix(MANY * tokens, hidden), matrix(MANY * tokens, hidden)
    x, wide, query = matrix(tokens, hidden), matrix(tokens, 4 * hidden), matrix(batch, heads, seq, 64)
    square, up, down, head = (
        matrix(hidden, hidden),
        matrix(hidden, 4 * hidden),
        matrix(4 * hidden, hidden),
        matrix(hidden, vocabulary),
    )
    return {
        "residual addition": lambda: stream.add_(branch),
        "attention core": lambda: F.scaled_dot_product_attention(query, query, query),
        "query, key, value, output": lambda: x @ square,
        "MLP up": lambda: x @ up,
        "MLP down": lambda: wide @ down,
        "head": lambda: x @ head,
    }


def of_data_sheet(name: str, batch: int = 2, seq: int = 2048) -> Roof:
    """A device's roof by its data sheet, with the course's model below it: each operation as fast as it can be."""
    machine, shape = MACHINES[name], costs.SEVEN_BILLION
    works = costs.gpt_operations(batch, seq, shape.hidden, shape.vocabulary)
    # The product that generates text, one token at a time: the same weights, and one row.
    works["one token at a time"] = costs.matrix_product(1, shape.hidden, shape.hidden)
    works["64 tokens at a time"] = costs.matrix_product(64, shape.hidden, shape.hidden)
    points = {
        each: (work.intensity, costs.attainable(work.intensity, machine.flops, machine.memory))
        for each, work in works.items()
    }
    return machine.flops, machine.memory, points


def picture(roofs: dict[str, Roof]) -> Figure:
    """Rooflines side by side: operations per second over operations for each byte, both logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(roofs), 4.2), layout="constrained")
    for axes, (name, (flops, moved, points)) in zip(
        figure.subplots(1, len(roofs), squeeze=False)[0], roofs.items(), strict=True
    ):
        ridge = flops / moved
        ends = 0.05, max(20 * ridge, *(2 * x for x, _ in points.values()))
        axes.loglog([ends[0], ridge, ends[1]], [ends[0] * moved, flops, flops], color="#333333", lw=2)
        axes.axvline(ridge, color="#999999", ls=":", lw=1)
        axes.annotate(
            f"ridge: {ridge:.0f} FLOP/B",
            (ridge, ends[0] * moved),
            xytext=(4, 2),
            textcoords="offset points",
            fontsize=8,
        )
        draw_points(axes, points.items())
        axes.set_xlim(*ends)
        axes.set_ylim(ends[0] * moved, 3 * flops)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("operations for each byte")
        axes.set_ylabel("operations per second")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_points(axes, points: Iterable[tuple[str, tuple[float, float]]]) -> None:
    """Points with a number each, and the names in a legend: those of products lie close together."""
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
    markers = "osD^vPpX"
    for number, (name, (x, y)) in enumerate(points):
        axes.plot(
            x, y, markers[number % 8], color=colours[number % 8], markersize=7, label=name, markeredgecolor="white"
        )
    axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.06))
