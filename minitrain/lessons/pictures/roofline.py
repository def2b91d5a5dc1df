"""The pictures of the lessons of the roofline."""

from __future__ import annotations

from minitrain.comm.timeline import Span, draw
from minitrain.costs import scaling as costs
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


def scaling(serial: float, *curves: tuple[dict[int, float], dict[int, float]]) -> Figure:
    """Speed-ups over ranks, strong and weak scaling side by side, with the law of each.

    Args:
        serial: The part of one device's step that is not divided.
        curves: Of strong and of weak scaling: the speed-ups with messages, and those with free ones.
    """
    figure, every = panels(9, 3.8, 2, sharey=True)
    names = "strong scaling: one batch for all", "weak scaling: a batch for each rank"
    laws = ("Amdahl's law", costs.amdahl), ("Gustafson's law", costs.gustafson)
    for axes, name, (law, formula), (real, free) in zip(every, names, laws, curves, strict=True):
        most = max(real)
        line = [1 + (most - 1) * step / 50 for step in range(51)]
        axes.plot([1, most], [1, most], "--", color="#999999", label="n ranks, n times as fast")
        axes.plot(line, [formula(serial, n) for n in line], color=COLORS[0], label=f"{law}, s = {100 * serial:.1f} %")
        axes.plot([*free], [*free.values()], "o", color=COLORS[0], mfc="white", label="measured, messages free")
        axes.plot([*real], [*real.values()], "s-", color=COLORS[1], label="measured, with messages")
        axes.set(title=name, xlabel="ranks", xticks=[*real])
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    every[0].set_ylabel("speed-up")
    return figure
