"""The pictures of the lessons of the roofline."""

from __future__ import annotations

from collections.abc import Mapping

from minitrain.comm.pictures import BYTES
from minitrain.costs import scaling as costs
from minitrain.costs.time_bar import Bar
from minitrain.lessons.pictures.panels import Figure, bar, key, name_rows, panels
from minitrain.lessons.pictures.time_bar import draw_bars

BOX = {"fc": "white", "ec": "none", "pad": 0.8}  # behind a text
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
Roof = tuple[float, float, dict[str, tuple[float, float]]]
"""Operations per second, bytes per second, and points: operations for each byte, and operations per second."""


def rooflines(roofs: dict[str, Roof]) -> Figure:
    """Rooflines on one pair of logarithmic axes, and the last one's points with their names next to them."""
    figure, (axes,) = panels(8.5, 4.4)
    *_, (flops, moved, points) = roofs.values()
    ends = 0.1, max(20 * flops / moved, *(2 * x for x, _ in points.values()))
    for (name, (peak, memory, _)), line in zip(reversed(roofs.items()), ("-", "--", ":"), strict=False):
        ridge = peak / memory
        axes.loglog([ends[0], ridge, ends[1]], [ends[0] * memory, peak, peak], line, color="#333333", lw=2)
        axes.text(ends[1], 1.2 * peak, f"{name}, ridge point at {ridge:.0f}", ha="right", fontsize=9)
    under = 0
    for number, (point, (x, y)) in enumerate(sorted(points.items(), key=lambda item: item[1])):
        axes.plot(x, y, "o", color="#0072B2", markersize=7, markeredgecolor="white")
        # Neighbors on the slope have their names on different sides of it, those on the flat part below each other.
        flat = x > flops / moved
        under += flat
        where, side = ((9, -9), "left") if number % 2 else ((-7, 5), "right")
        line = {"arrowstyle": "-", "color": "#999999", "lw": 0.8, "shrinkB": 4, "relpos": (1, 1)} if flat else None
        where, side = ((3, -75 - 14 * under), "right") if flat else (where, side)
        look = {"va": "center", "fontsize": 8, "arrowprops": line, "bbox": BOX}
        axes.annotate(point, (x, y), where, textcoords="offset points", ha=side, **look)
    axes.set(xlim=(ends[0] / 4, ends[1]), xlabel="operations for each byte")
    axes.set(ylim=(ends[0] * moved / 2, 3 * flops), ylabel="operations per second")
    return figure


def bar_of_time(bars: Mapping[str, Bar], sent: Mapping[str, tuple[float, float, float]], steps: float) -> Figure:
    """The bar of time, and below it what is sent, as parts of the backward that hides it.

    Args:
        bars: Name of a layout -> its bar.
        sent: The same names -> seconds of backward, of the ring's bytes, and of its latency.
        steps: Steps of the training.
    """
    figure, (above, below) = panels(9, 1.9 + 1.24 * len(bars), rows=2)
    looks = draw_bars(above, bars, steps)
    parts = {"bytes of the gradients": BYTES["gradients"], "latency": ("#555555", "xx")}
    for row, (backward, *times) in enumerate(sent.values()):
        end = 0.0
        for seconds, (name, look) in zip(times, parts.items(), strict=True):
            bar(below, row, end, seconds / backward, look, height=0.5, label=None if row else name)
            end += seconds / backward
        words = f"({' + '.join(f'{1e3 * each:.0f}' for each in times)}) / {1e3 * backward:,.0f} ms"
        below.annotate(words, (end, row), (6, 0), textcoords="offset points", va="center", fontsize=9)
    below.axvline(1, color="black", lw=1, ls="--")
    name_rows(below, list(sent))
    most = max(sum(times) / backward for backward, *times in sent.values())
    below.set(xlim=(0, 1.45 * max(1.0, most)), xlabel="what is sent, in lengths of a backward: beyond 1, it is exposed")
    below.legend(frameon=False, loc="upper right")
    key(figure, above, looks)
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
