"""A picture of resilience: tests in pairs as a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from minitrain.lessons.pictures.panels import Figure, panels, write

RED, GREEN = "#D55E00", "#009E73"


def pairs(rounds: dict[str, Sequence[tuple[int, int]]], faulty: Collection[int], accused: Collection[int]) -> Figure:
    """Nodes on a circle and a line for each tested pair, in a panel per round; ringed: the accused nodes."""
    figure, all_axes = panels(4 * len(rounds), 3.4, len(rounds), bare=True, subplot_kw={"aspect": "equal"})
    nodes = 1 + max(max(pair) for tested in rounds.values() for pair in tested)
    spots = [(math.sin(2 * math.pi * n / nodes), math.cos(2 * math.pi * n / nodes)) for n in range(nodes)]
    for axes, (title, tested) in zip(all_axes, rounds.items(), strict=True):
        for pair in tested:
            fails = not set(pair).isdisjoint(faulty)
            xs, ys = zip(*(spots[node] for node in pair), strict=True)
            axes.plot(xs, ys, "--" if fails else "-", color=RED if fails else GREEN, linewidth=2, zorder=1)
        for node, (x, y) in enumerate(spots):
            face = "#BBBBBB" if node in faulty else "white"
            axes.plot(x, y, "o", markersize=22, markerfacecolor=face, markeredgecolor="black", zorder=2)
            if node in accused:
                axes.plot(x, y, "o", markersize=31, markerfacecolor="none", markeredgecolor=RED, markeredgewidth=2)
            write(axes, x, y, str(node), 10, zorder=3)
        axes.set(title=title, xlim=(-1.4, 1.4), ylim=(-1.4, 1.4))
    axes.plot([], [], "-", color=GREEN, label="the pair passes")
    axes.plot([], [], "--", color=RED, label="it fails")
    axes.plot([], [], "o", markerfacecolor="#BBBBBB", markeredgecolor="black", label="faulty")
    axes.plot([], [], "o", markerfacecolor="none", markeredgecolor=RED, label="accused")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
