"""The pictures of the lessons on tensor parallelism."""

from __future__ import annotations

from math import exp, log

from minitrain.comm.pictures import RANKS
from minitrain.lessons.pictures.panels import Figure, box, panels

# What is drawn of each parameter: height and width in units of h/2, and the dim that is cut, None where none is.
DRAWN: dict[str, tuple[float, float, int | None]] = {
    "token table,\nhead if tied": (8, 2, 0),
    "position\ntable": (3, 2, None),
    "norm": (0.4, 2, None),
    "query": (2, 2, 0),
    "key": (2, 2, 0),
    "value": (2, 2, 0),
    "output": (2, 2, 1),
    "MLP up": (8, 2, 0),
    "MLP down": (2, 8, 1),
}


def weights(ranks: int) -> Figure:
    """The weights of the ends and of one layer, `[out, in]`, with the rank that holds each piece."""
    figure, (axes,) = panels(10, 3.9, bare=True)
    left = 0.0
    for name, (height, width, dim) in DRAWN.items():
        pieces = 1 if dim is None else ranks
        for rank in range(pieces):
            tall, wide = (height / pieces, width) if dim == 0 else (height, width / pieces)
            x, y = (left, -(rank + 1) * tall) if dim == 0 else (left + rank * wide, -height)
            look, paper = (("#EEEEEE", ""), 0) if dim is None else (RANKS[rank % len(RANKS)], 0.8)
            text = str(rank) if dim is not None else "all" if height > 1 else ""
            size = 8 if min(tall, wide) > 0.4 else 6
            box(axes, x, y, wide, tall, look, text, size, paper, ec="black", lw=0.8)
        axes.text(left + width / 2, 0.25, name, ha="center", va="bottom", fontsize=9)
        left += width + 1.0
    axes.text(left, -9.4, "numbers: the rank that holds the piece; gray: on every rank", ha="right", fontsize=9)
    axes.set(xlim=(-0.3, left), ylim=(-9.8, 1.9), aspect="equal")
    return figure


def merging(powers: tuple[tuple[float, ...], ...] = ((1, 0), (3, 3), (2, 2), (0, 1))) -> Figure:
    """Logits on several ranks, in ln 2; each rank's exponentials and their sum; and the softmax of all."""
    figure, (logits, own, merged) = panels(9, 2.8, 3)
    biggest = max(map(max, powers))
    total = sum(2.0 ** (x - biggest) for rank in powers for x in rank)
    column = 0
    for rank, mine in enumerate(powers):
        color, hatch = RANKS[rank % len(RANKS)]
        m, places = max(mine), range(column, column + len(mine))
        exponentials = [exp((x - m) * log(2)) for x in mine]
        shares = [each * 2.0 ** (m - biggest) / total for each in exponentials]
        for axes, heights in ((logits, mine), (own, exponentials), (merged, shares)):
            axes.bar(places, heights, color=color, hatch=hatch, edgecolor="white", width=0.9)
        logits.plot([column - 0.5, column + len(mine) - 0.5], [m, m], color="black", lw=1.5)
        logits.text(column + 0.5, m + 0.08, f"$m_{rank}$", ha="center")
        own.text(column + 0.5, 1.04, f"{sum(exponentials):g}", ha="center")
        column += len(mine)
    logits.set(title="logits, in ln 2", ylim=(0, 3.6))
    own.set(title="$e^{x - m_r}$, and the sums $s_r$", ylim=(0, 1.2))
    merged.set(title="times $e^{m_r - m} / s$: softmax")
    for axes in (logits, own, merged):
        axes.set(xlabel="token", xticks=range(column))
    return figure
