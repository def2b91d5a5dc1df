"""The pictures of the chapter matrix product."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minitrain.comm.pictures import BYTES, RANKS
from minitrain.costs.roofline import Machine
from minitrain.lessons.pictures.panels import Axes, Figure, bar, box, key, name_rows, panels, write

# The dims that are cut between ranks: of X, of W and of Y; None where each rank has the whole.
CUTS = {"by data": (0, None, 0), "by columns of W": (None, 1, 1), "by rows of W": (1, 0, None)}
PAPER = 1.2  # the margin of the white paper behind a text


def splits(rows: int = 4, inner: int = 5, columns: int = 8, ranks: int = 2) -> Figure:
    """The three splits between some ranks, one below the other, to scale."""
    figure, every_axes = panels(7.5, 5.4, rows=3, bare=True)
    gap, half = max(rows, inner, columns) / 8, max(rows, inner) / 2
    every, total = ("both ranks", "rank 0 + rank 1") if ranks == 2 else ("every rank", "sum over ranks")
    shapes = ("X", rows, inner, "·"), ("W", inner, columns, "="), ("Y", rows, columns, "")
    for axes, (name, cuts) in zip(every_axes, CUTS.items(), strict=True):
        left = 0.0
        for (label, tall, wide, sign), cut in zip(shapes, cuts, strict=True):
            _matrix(axes, left, (tall, wide), cut, ranks, total if label == "Y" else every, gap)
            title = f"{label}  {tall}×{wide}"
            axes.text(left + wide / 2, tall / 2 + 0.2 * gap, title, ha="center", va="bottom", fontsize=10)
            left += wide + 1.6 * gap
            write(axes, left - 0.8 * gap, 0, sign, 16)
        axes.set(xlim=(-0.2 * gap, left - 1.4 * gap), ylim=(-half - 0.3 * gap, half + 0.9 * gap), aspect="equal")
        axes.set_title(name, loc="left", fontsize=11)
    return figure


def _matrix(
    axes: Axes, left: float, shape: tuple[int, int], cut: int | None, ranks: int, whole: str, gap: float
) -> None:
    """One matrix, drawn as one block or cut along a dim, each part with the rank that holds it."""
    parts, edge = [shape[0]] if cut is None else map(len, torch.arange(shape[cut]).tensor_split(ranks)), 0
    for rank, length in enumerate(parts):
        (tall, wide), (across, down) = ((shape[0], length), (edge, 0)) if cut == 1 else ((length, shape[1]), (0, edge))
        edge += length
        if not length:
            continue
        name, look = f"rank {rank}" if ranks <= (2 if cut else 4) else str(rank), RANKS[rank % len(RANKS)]
        name, look = (whole, ("#DDDDDD", "")) if cut is None else (name, look)
        x, y, size = left + across, shape[0] / 2 - down - tall, 9 if min(tall, wide) > 0.9 * gap else 6
        box(axes, x, y, wide, tall, look, name, size, PAPER, lw=2)


def grid() -> Figure:
    """Four ranks as a 2 × 2 grid: what each holds of X and W, and the groups in which it sums."""
    from matplotlib.patches import FancyBboxPatch

    figure, (axes,) = panels(6.4, 3.3, bare=True)
    for rank, look in enumerate(RANKS[:4]):
        i, j = divmod(rank, 2)
        holds = f"rank {rank}\n{('upper', 'lower')[i]} rows of X\n{('left', 'right')[j]} columns of W"
        box(axes, 2.6 * j, 1.5 * (1 - i), 1.8, 0.9, look, holds, 8, PAPER)
    looks = {"boxstyle": "round,pad=0.13", "fc": "none", "lw": 1.5}
    for k in range(2):
        axes.add_patch(FancyBboxPatch((0, 1.5 * k), 4.4, 0.9, ec="#333333", **looks))
        axes.add_patch(FancyBboxPatch((2.6 * k, -0.05), 1.8, 2.5, ec="#777777", ls="--", **looks))
        axes.text(4.65, 1.5 * k + 0.45, "a tp group:\nsums ∂X", va="center", fontsize=9)
        axes.text(2.6 * k + 0.9, 2.68, "a dp group: sums ∂W", ha="center", fontsize=9, color="#555555")
    axes.set(xlim=(-0.25, 5.8), ylim=(-0.3, 2.95))
    return figure


def machine(gpu: Machine, nodes: int = 2, gpus: int = 8) -> Figure:
    """GPUs with their memory in nodes, what connects them, and how many bytes per second go through each."""
    figure, (axes,) = panels(9.5, 3.6, bare=True)
    fast, slow, plain = "#009E73", "#D55E00", "#333333"
    width = gpus + 0.7  # of a node, with the gap to the next

    def part(x: float, y: float, wide: float, tall: float, text: str, color: str, size: float = 7) -> None:
        box(axes, x, y, wide, tall, ("white", ""), text, size, ec=color, lw=1.3, zorder=2)

    for node in range(nodes):
        left = node * width
        box(axes, left - 0.15, 1.0, gpus + 0.3, 4.3, ("#F2F2F2", ""), ec="none", zorder=0)
        axes.text(left + gpus / 2, 5.4, f"node {node}", ha="center", fontsize=9)
        part(left, 4.55, gpus, 0.55, "NVSwitch", fast, 8)
        for number in range(gpus):
            middle = left + number + 0.5
            axes.plot([middle] * 2, [4.0, 4.55], color=fast, lw=4, zorder=1)
            axes.plot([middle] * 2, [0.4, 2.3], color=slow, lw=1.2, zorder=1)
            part(middle - 0.43, 3.3, 0.86, 0.7, f"GPU\n{node * gpus + number}", plain)
            part(middle - 0.43, 2.3, 0.86, 1.0, f"{gpu.size / 1e9:.0f}\nGB", plain)
            part(middle - 0.43, 1.2, 0.86, 0.55, "card", slow)
    part(0, -0.15, nodes * width - 0.7, 0.55, "switches between the nodes", slow, 8)
    for y, text in (
        (4.4, f"NVLink: {gpu.link / 1e9:,.0f} GB/s per GPU"),
        (3.65, f"computes: {gpu.flops / 1e12:,.0f} TFLOP/s"),
        (2.8, f"its memory: {gpu.memory / 1e9:,.0f} GB/s"),
        (1.47, f"network: {gpu.network / 1e9:,.0f} GB/s per GPU"),
    ):
        axes.text(-0.4, y, text, ha="right", va="center", fontsize=8)
    axes.set(xlim=(-6.2, nodes * width), ylim=(-0.3, 5.9))
    return figure


def held(steps: Mapping[str, Mapping[str, int]]) -> Figure:
    """Bytes by category, one bar for each step, each part with its size."""
    figure, (axes,) = panels(8, 1.2 + 0.75 * len(steps))
    for row, sizes in enumerate(steps.values()):
        left = 0.0
        for category, look in BYTES.items():
            megabytes = sizes[category] / 1e6
            bar(axes, row, left, megabytes, look, f"{megabytes:.1f}", 9, PAPER, height=0.62)
            left += megabytes
    key(figure, axes, BYTES, place="outside upper center")
    name_rows(axes, list(steps))
    axes.set_xlabel("MB on one device")
    return figure
