"""The pictures of the lessons of tables: bytes over the size of a batch, and how well hybrid training ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.comm.pictures import BYTES, RANKS
from minitrain.costs import embedding, hybrid
from minitrain.lessons.pictures.panels import Figure, arrow, panels, write

if TYPE_CHECKING:
    from minitrain.recommender.click import Clicks

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


def ranking(data: Clicks, dimension: int, batch: int, curve: list[tuple[int, float]]) -> Figure:
    """Left: AUC over the steps, between its bounds. Right: what the busiest rank carries, by the number of workers."""
    from minitrain.recommender.click import auc

    figure, (left, right) = panels(9, 3.6, 2)
    test = data.batch(-1, 4000)
    left.plot(*zip(*curve, strict=True), "o-", color=BLUE, label="reached")
    best, plain = auc(test.truth, test.truth), auc(data.without_ids(test), test.truth)
    left.axhline(best, color="black", linewidth=0.8, linestyle="--", label="best possible")
    left.axhline(plain, color="black", linewidth=0.8, linestyle=":", label="best without ids")
    left.set(xlabel="step", ylabel="AUC", ylim=(0.5, 1))
    counts = range(1, 17)
    wanted = len(data.names) * embedding.expected_distinct(batch, data.frequencies.tolist())
    for servers, style, color in ((1, "s-", ORANGE), (2, "^-", "#E69F00")):
        load = [hybrid.server_on_average(wanted, dimension, n, servers) / 1024 for n in counts]
        right.plot(counts, load, style, color=color, markersize=3, label=f"{servers} server{'s' * (servers > 1)}")
    load = [hybrid.on_average(wanted, dimension, n) / 1024 for n in counts]
    right.plot(counts, load, "o-", color=BLUE, markersize=3, label="hybrid")
    right.set(xlabel="workers", ylabel="busiest rank, tables, KiB per step", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure
