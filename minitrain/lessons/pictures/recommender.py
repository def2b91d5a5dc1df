"""The pictures of the lessons of tables: bytes over a batch's size, a step's exchanges, and rows fetched ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitrain.comm.pictures import BYTES, RANKS
from minitrain.comm.timeline import KINDS, Span
from minitrain.costs import embedding
from minitrain.lessons.pictures.panels import Figure, arrow, bar, key, name_rows, panels, write

BLUE, ORANGE = "#0072B2", "#D55E00"


def bytes_of_a_step(points: list[tuple[int, int]], ids: int, dimension: int, skew: float, features: int) -> Figure:
    """Bytes of a worker's step against the size of its batch: measured, expected, and without sparse tables."""
    figure, (axes,) = panels(7, 4)
    sizes = [2**power for power in range(4, 16)]
    each = features * (embedding.ID + 2 * embedding.row_bytes(dimension, 0))
    axes.plot(sizes, [size * each for size in sizes], ":", color="0.4", label="a row for each occurrence")
    expected = [embedding.expected_distinct(size, embedding.zipf(ids, skew)) * each for size in sizes]
    axes.plot(sizes, expected, "-", color=BLUE, label=f"a row for each distinct id, expected, Zipf {skew:g}")
    axes.plot(*zip(*points, strict=True), "o", color="black", label="measured")
    whole = features * embedding.dense_step(ids, dimension)
    axes.axhline(whole, linestyle="--", color=ORANGE, label=f"whole tables of {ids:,} rows")
    axes.set(xscale="log", yscale="log", xlabel="impressions in a worker's batch", ylabel="bytes of a worker in a step")
    axes.legend(loc="lower right")
    return figure


def exchanges(asked: list[dict[int, list[int]]]) -> Figure:
    """The three all-to-alls of a step as arrows: ids to their owners, rows back, gradients to the owners.

    Args:
        asked: Of each rank: owner -> the distinct ids that it asks of it.
    """
    figure, panes = panels(10, 3.2, 3, bare=True)
    rows, gradients = (BYTES[kind][0] for kind in ("parameters", "gradients"))
    titles = {
        "1. ids go to their owners": "#333333",
        "2. rows come back": rows,
        "3. gradients go to the owners": gradients,
    }
    for axes, (title, color) in zip(panes, titles.items(), strict=True):
        for (rank, owners), (look, _) in zip(enumerate(asked), RANKS, strict=False):
            for x, text in ((0, f"rank {rank}\nasks"), (1, f"rank {rank}\nowns")):
                axes.text(x, -rank, text, color="white", ha="center", va="center", fontsize=7, bbox={"fc": look})
            for owner, ids in owners.items():
                # What a rank keeps itself is not sent.
                line, style = ":" if owner == rank else "-", "<|-" if color == rows else "-|>"
                arrow(axes, (0.18, -rank), (0.82, -owner), style, color=color, lw=1.6, ls=line)
                write(axes, 0.32, -rank + 0.22 * (rank - owner), ", ".join(map(str, ids)), 7, 0.8, color=color)
        axes.set(xlim=(-0.25, 1.25), ylim=(0.5 - len(asked), 0.5))
        axes.set_title(title, fontsize=10)
    return figure


def ahead(spans_of: Mapping[str, Sequence[Span]], seconds: float) -> Figure:
    """The first seconds of a rank's runs, one below the other: its own work and its table's thread, step by step."""
    figure, (axes,) = panels(9, 0.9 + 0.5 * len(spans_of) * 2)
    kinds = {"C": "compute", "R": "communicate", "F": "receive", "P": "backward"}
    rows = []
    for name, spans in spans_of.items():
        steps = dict.fromkeys(kinds, 0)  # how many of each kind there have been
        for span in sorted(spans, key=lambda span: span.start):
            steps[span.label] += 1
            if span.end <= seconds:
                row, length = len(rows) + (span.lane == "thread"), 1e3 * (span.end - span.start)
                text = f"{span.label}$_{{{steps[span.label]}}}$"
                bar(axes, row, 1e3 * span.start, length, KINDS[kinds[span.label]], text, 8, 0.8)
        rows += [f"{name}: rank 0", "its thread"]
    name_rows(axes, rows)
    axes.set(xlim=(0, 1e3 * seconds), xlabel="virtual milliseconds")
    names = {"C": "C: computes", "R": "R: all-reduces", "F": "F: fetches rows", "P": "P: pushes gradients"}
    key(figure, axes, {text: KINDS[kinds[each]] for each, text in names.items()})
    return figure
