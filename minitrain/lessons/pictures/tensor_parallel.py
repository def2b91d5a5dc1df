"""The pictures of the lessons on tensor parallelism."""

from __future__ import annotations

from minitrain.costs import vocabulary as costs
from minitrain.lessons.pictures.panels import Figure, panels

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
COLORS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#999999")


def weights(ranks: int) -> Figure:
    """The weights of the ends and of one layer, `[out, in]`, with the rank that holds each piece."""
    from matplotlib.patches import Rectangle

    figure, (axes,) = panels(10, 3.9)
    left = 0.0
    for name, (height, width, dim) in DRAWN.items():
        pieces = 1 if dim is None else ranks
        for rank in range(pieces):
            tall, wide = (height / pieces, width) if dim == 0 else (height, width / pieces)
            x, y = (left, -(rank + 1) * tall) if dim == 0 else (left + rank * wide, -height)
            color = "#EEEEEE" if dim is None else COLORS[rank % len(COLORS)]
            axes.add_patch(Rectangle((x, y), wide, tall, facecolor=color, edgecolor="black", lw=0.8))
            text = str(rank) if dim is not None else "all" if height > 1 else ""
            size = 8 if min(tall, wide) > 0.4 else 6
            axes.text(x + wide / 2, y + tall / 2, text, ha="center", va="center", fontsize=size)
        axes.text(left + width / 2, 0.25, name, ha="center", va="bottom", fontsize=9)
        left += width + 1.0
    axes.text(left, -9.4, "numbers: the rank that holds the piece; gray: on every rank", ha="right", fontsize=9)
    axes.set(xlim=(-0.3, left), ylim=(-9.8, 1.9), aspect="equal")
    axes.axis("off")
    return figure


def vocabulary(ranks: int, size: int) -> Figure:
    """The table's rows, cut over the ranks, with the padding at the end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.6 + 0.45 * ranks), layout="constrained")
    axes = figure.add_subplot()
    held = costs.rows(size, ranks)
    for rank in range(ranks):
        real = costs.real_rows(size, ranks, rank)
        axes.barh(rank, real, left=rank * held, color="#56B4E9", edgecolor="black")
        if real < held:
            axes.barh(rank, held - real, left=rank * held + real, color="white", edgecolor="black", hatch="///")
        first, last = rank * held, rank * held + real - 1
        text = "padding only" if not real else f"token {first}" if real == 1 else f"tokens {first} to {last}"
        beside = rank * held + held + 0.5 if rank < ranks / 2 else rank * held - 0.5
        axes.text(beside, rank, text, va="center", ha="left" if rank < ranks / 2 else "right", fontsize=9)
    axes.set(xlabel=f"row of the table (V = {size}, V' = {ranks * held}; hatched: padding)")
    axes.set(yticks=range(ranks), yticklabels=[f"rank {rank}" for rank in range(ranks)], xlim=(0, ranks * held))
    axes.invert_yaxis()
    return figure


def loss(ranks: int) -> Figure:
    """What is sent of a token: gathered logits, and three numbers, over the size of the vocabulary."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = [2**power for power in range(8, 19)]
    gathered = [costs.gathered_logits_traffic(1, size, ranks, 0).bytes for size in sizes]
    three = [costs.loss_traffic(1, ranks, 0).bytes for _ in sizes]
    axes.plot(sizes, gathered, "o-", label="gathered logits")
    axes.plot(sizes, three, "s--", label="three numbers")
    axes.set(xscale="log", xlabel="vocabulary", ylabel=f"bytes a token from each of {ranks} ranks")
    axes.set_yscale("log") if ranks > 1 else None
    axes.axvline(50257, color="#888888", lw=1)
    axes.annotate("GPT-2", (50257, max(three[0], 1)), xytext=(4, 12), textcoords="offset points")
    axes.legend()
    return figure
