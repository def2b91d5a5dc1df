"""The pictures of the chapter matrix product."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minitrain.comm.pictures import BYTES
from minitrain.lessons.pictures.panels import Axes, Figure, panels

# The dims that are cut between ranks: of X, of W and of Y; None where each rank has the whole.
CUTS = {"by data": (0, None, 0), "by columns of W": (None, 1, 1), "by rows of W": (1, 0, None)}
# Of ranks; the fifth looks like the first.
LOOKS = (("#56B4E9", ""), ("#E69F00", "///"), ("#009E73", "..."), ("#CC79A7", "\\\\\\"))
BOX = {"fc": "white", "ec": "none", "pad": 1.2}  # behind a text


def splits(rows: int = 4, inner: int = 5, columns: int = 8, ranks: int = 2) -> Figure:
    """The three splits between some ranks, one below the other, to scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.4), layout="constrained")
    gap, half = max(rows, inner, columns) / 8, max(rows, inner) / 2
    every, total = ("both ranks", "rank 0 + rank 1") if ranks == 2 else ("every rank", "sum over ranks")
    shapes = ("X", rows, inner, "·"), ("W", inner, columns, "="), ("Y", rows, columns, "")
    for number, (name, cuts) in enumerate(CUTS.items()):
        axes, left = figure.add_subplot(3, 1, number + 1), 0.0
        for (label, tall, wide, sign), cut in zip(shapes, cuts, strict=True):
            _matrix(axes, left, (tall, wide), cut, ranks, total if label == "Y" else every, gap)
            title = f"{label}  {tall}×{wide}"
            axes.text(left + wide / 2, tall / 2 + 0.2 * gap, title, ha="center", va="bottom", fontsize=10)
            left += wide + 1.6 * gap
            axes.text(left - 0.8 * gap, 0, sign, ha="center", va="center", fontsize=16)
        axes.set(xlim=(-0.2 * gap, left - 1.4 * gap), ylim=(-half - 0.3 * gap, half + 0.9 * gap), aspect="equal")
        axes.set_title(name, loc="left", fontsize=11)
        axes.axis("off")
    return figure


def _matrix(
    axes: Axes, left: float, shape: tuple[int, int], cut: int | None, ranks: int, whole: str, gap: float
) -> None:
    """One matrix, drawn as one block or cut along a dim, each part with the rank that holds it."""
    from matplotlib.patches import Rectangle

    parts, edge = [shape[0]] if cut is None else map(len, torch.arange(shape[cut]).tensor_split(ranks)), 0
    for rank, length in enumerate(parts):
        (tall, wide), (across, down) = ((shape[0], length), (edge, 0)) if cut == 1 else ((length, shape[1]), (0, edge))
        edge += length
        if not length:
            continue
        name, look = f"rank {rank}" if ranks <= (2 if cut else 4) else str(rank), LOOKS[rank % len(LOOKS)]
        name, (color, hatch) = (whole, ("#DDDDDD", "")) if cut is None else (name, look)
        x, y, size = left + across, shape[0] / 2 - down - tall, 9 if min(tall, wide) > 0.9 * gap else 6
        axes.add_patch(Rectangle((x, y), wide, tall, facecolor=color, hatch=hatch, edgecolor="white", lw=2))
        axes.text(x + wide / 2, y + tall / 2, name, ha="center", va="center", fontsize=size, bbox=BOX)


def held(steps: Mapping[str, Mapping[str, int]]) -> Figure:
    """Bytes by category, one bar for each step, each part with its size."""
    figure, (axes,) = panels(8, 1.2 + 0.75 * len(steps))
    for row, sizes in enumerate(steps.values()):
        left = 0.0
        for category, (color, hatch) in BYTES.items():
            megabytes = sizes[category] / 1e6
            axes.barh(row, megabytes, left=left, height=0.62, color=color, hatch=hatch, edgecolor="white")
            axes.text(left + megabytes / 2, row, f"{megabytes:.1f}", ha="center", va="center", fontsize=9, bbox=BOX)
            left += megabytes
    handles = [axes.barh([0], [0], color=c, hatch=h, edgecolor="white", label=name) for name, (c, h) in BYTES.items()]
    axes.set_yticks(range(len(steps)), list(steps))
    axes.invert_yaxis()
    axes.set_xlabel("MB on one device")
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure
