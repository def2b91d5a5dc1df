"""Pictures of resilience: a hang as a monitor sees it, and tests in pairs as a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from minitrain.comm.pictures import TIME
from minitrain.costs import resilience as costs
from minitrain.lessons.pictures.panels import Figure, arrow, bar, panels, write

RED, GREEN, GRAY = "#D55E00", "#009E73", "#777777"


def hang(limit: int, interval: int, since_look: int, step: int = 10) -> Figure:
    """The steps of a rank that gets stuck, and the monitor's looks until it calls the rank late; in seconds."""
    alarm = costs.seen_after(since_look, limit, interval)
    looks = range(-since_look - interval, alarm + 1, interval)
    figure, (axes,) = panels(9, 2.6)
    for end in range(0, looks[0], -step):
        bar(axes, 1, end - step, step, TIME["compute"], height=0.4)
        axes.plot(end, 1.3, "v", color="black")
    bar(axes, 1, 0, alarm, ("white", "///"), height=0.4, edgecolor=GRAY)
    axes.text(alarm / 2, 1.35, "stuck: no beat", ha="center")
    axes.text(0, 1.42, "last beat", ha="center")
    for look in looks:
        axes.plot([look, look], [-0.25, 0.25], color=RED if look == alarm else "black", linewidth=2)
    seen = interval - since_look
    parts = {f"o = {since_look}": (-since_look, 0), f"i − o = {seen}": (0, seen)}
    for text, (start, end) in (parts | {f"limit, by looks: {alarm - seen}": (seen, alarm)}).items():
        arrow(axes, (start, -0.45), (end, -0.45), "<->")
        axes.text((start + end) / 2, -0.6, text, ha="center", va="top", fontsize=8)
    axes.text(alarm + 1, 0, "late!", color=RED, va="center")
    axes.set(ylim=(-1, 1.7), xlim=(looks[0] - 1, alarm + 7), xlabel="seconds after the last beat of any rank")
    axes.set_yticks([1, 0], ["rank 2's steps", "the monitor's looks"])
    return figure


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
