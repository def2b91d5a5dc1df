"""The picture of the chapter on planning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from minitrain.lessons.pictures.panels import Figure, box, panels, write
from minitrain.planning.partition import partition


def table_of_cuts(seconds: Sequence[float], p: int) -> Figure:
    """The table that `partition` fills: a row for each number of stages, and the best cut's way through it framed."""
    figure, (axes,) = panels(10, 3.2)
    counts = partition(seconds, p)[1]
    on_the_way = {(stages, sum(counts[:stages])) for stages in range(1, p + 1)}
    for stages, j in product(range(1, p + 1), range(1, len(seconds) + 1)):
        if j < stages:
            continue  # a stage would be empty
        best = partition(seconds[:j], stages)[0]
        shade, framed = 1 - 0.75 * (best / sum(seconds)) ** 0.5, (stages, j) in on_the_way
        look, (edge, width) = ((shade, shade, 1 - (1 - shade) / 3), ""), ("#D55E00", 2.5) if framed else ("white", 0.5)
        box(axes, j - 0.5, stages - 0.5, 1, 1, look, ec=edge, lw=width, zorder=1 + framed)
        if framed:
            write(axes, j, stages, f"{1000 * best:.0f}", 7, zorder=3)
    axes.set(xlim=(0.4, len(seconds) + 0.6), ylim=(0.4, p + 0.6), yticks=range(1, p + 1))
    axes.set(xlabel="layers that are divided: the first j", ylabel="into how many stages")
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return figure
