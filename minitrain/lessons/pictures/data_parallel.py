"""The pictures of the lessons of data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitrain.comm.pictures import RANKS
from minitrain.comm.timeline import Span
from minitrain.lessons.pictures.panels import Figure, arrow, panels, runs


def steps(spans_of: Mapping[str, Sequence[Span]]) -> Figure:
    """Rank 0's four steps, one below the other."""
    return runs(spans_of, "A step in four ways")


def valleys(losses: Sequence[tuple[float, float]], settled: Mapping[int, float]) -> Figure:
    """Ranks' losses with a curvature and an optimum each, their mean, and where local SGD settles, by H."""
    figure, (axes,) = panels(7, 2.8)
    grid = [k / 50 - 0.2 for k in range(71)]

    def mean(x: float) -> float:
        return sum(a / 2 * (x - c) ** 2 for a, c in losses) / len(losses)

    for (a, c), style in zip(dict.fromkeys(losses), ("--", ":"), strict=True):
        curve = [a / 2 * (x - c) ** 2 for x in grid]
        axes.plot(grid, curve, style, color="#777777", label=f"loss of {losses.count((a, c))} ranks, best at {c:g}")
    axes.plot(grid, [mean(x) for x in grid], color="#000000", label="mean of all ranks")
    for number, (every, x) in enumerate(settled.items()):
        axes.plot(x, mean(x), "o", color="#0072B2", zorder=3)
        look = {"ha": "center", "fontsize": 8, "bbox": {"fc": "white", "ec": "none", "pad": 0.5}}
        axes.annotate(f"H = {every}", (x, mean(x)), (0, 9 + 12 * (number % 2)), textcoords="offset points", **look)
    axes.set(xlabel="the parameter", ylabel="loss", ylim=(-0.01, 0.2))
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def outer_step() -> Figure:
    """Four ranks' inner steps from one point, their mean, and the outer step along it."""
    figure, (axes,) = panels(7, 2.8, bare=True)
    ends = ((2.0, 1.1), (2.6, 0.5), (2.3, -0.3), (1.7, -0.7))
    for rank, (x, y) in enumerate(ends):
        path = [(x * k / 6, y * (k / 6) ** 2 + 0.06 * (-1) ** k * (0 < k < 6)) for k in range(7)]
        axes.plot(*zip(*path, strict=True), "-", color=RANKS[rank][0], marker=".", lw=1)
        axes.text(x + 0.08, y, f"$\\theta_{rank}$, after H inner steps", color=RANKS[rank][0], va="center", fontsize=9)
    x, y = (sum(each) / len(ends) for each in zip(*ends, strict=True))
    arrow(axes, (x, y), (0, 0), color="#D55E00", lw=2)
    arrow(axes, (0, -0.25), (0.7 * x, 0.7 * y - 0.25), color="#000000", lw=2)
    axes.text(x + 0.08, y, "outer gradient Δ", color="#D55E00", va="center", fontsize=9)
    axes.text(-0.25, -0.65, "0.7 Δ: outer step without momentum", fontsize=9)
    axes.plot(0, 0, "ko")
    axes.text(-0.08, 0, "θ", ha="right", va="center", fontsize=11)
    axes.set(xlim=(-0.3, 4.6), ylim=(-1, 1.4))
    return figure
