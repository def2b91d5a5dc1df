"""The pictures of the lessons of the roofline."""

from __future__ import annotations

from minitrain.comm.timeline import Span, draw
from minitrain.lessons.pictures.panels import Figure, panels

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
Roof = tuple[float, float, dict[str, tuple[float, float]]]
"""Operations per second, bytes per second, and points: operations for each byte, and operations per second."""


def runs(spans_of: dict[str, list[Span]]) -> Figure:
    """Rank 0's runs, one below the other: products above, network below."""
    together = []
    for number, (name, spans) in enumerate(spans_of.items(), 1):
        for span in spans:
            part = "products" if span.lane == "compute" else "sent"  # in the order of the alphabet, as rows are drawn
            lane = f"{number} {name}: {part}"
            together.append(Span(span.rank, lane, span.kind, span.label, span.start, span.end))
    return draw(together, "what hides behind products", "virtual seconds")


def rooflines(roofs: dict[str, Roof]) -> Figure:
    """Rooflines side by side: operations per second over operations for each byte, both logarithmic."""
    figure, every = panels(5.2 * len(roofs), 4.2, len(roofs))
    for axes, (name, (flops, moved, points)) in zip(every, roofs.items(), strict=True):
        ridge = flops / moved
        ends = 0.05, max(20 * ridge, *(2 * x for x, _ in points.values()))
        axes.loglog([ends[0], ridge, ends[1]], [ends[0] * moved, flops, flops], color="#333333", lw=2)
        axes.axvline(ridge, color="#999999", ls=":", lw=1)
        where = {"xytext": (4, 2), "textcoords": "offset points", "fontsize": 8}
        axes.annotate(f"ridge: {ridge:.0f} FLOP/B", (ridge, ends[0] * moved), **where)
        # Points with a number each, and the names in a legend: those of products lie close together.
        for (point, (x, y)), marker, color in zip(points.items(), "osD^vPpX", COLORS, strict=False):
            axes.plot(x, y, marker, color=color, markersize=7, label=point, markeredgecolor="white")
        axes.legend(frameon=False, fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.06))
        axes.set(xlim=ends, xlabel="operations for each byte")
        axes.set(ylim=(ends[0] * moved, 3 * flops), ylabel="operations per second")
        axes.set_title(name, fontsize=10)
    return figure
