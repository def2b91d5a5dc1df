"""What pictures of several chapters begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minitrain.comm.timeline import Span, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # for signatures: matplotlib is imported only where something is drawn


Look = tuple[Any, str]  # color and pattern
Panels = tuple[Figure, list[Axes]]


def panels(width: float, height: float, count: int = 1, rows: int = 1, bare: bool = False, **how: Any) -> Panels:
    """A figure with so many panels side by side, in each of so many rows; `how` is for matplotlib's `subplots`.

    On a white ground of its own, so that it can be read on a dark page, too. Bare panels have no axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = list(figure.subplots(rows, count, squeeze=False, **how).flat)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        if bare:
            each.axis("off")
    return figure, axes


def write(axes: Axes, x: float, y: float, text: str, size: float = 8, paper: float = 0.0, **how: Any) -> None:
    """A text around a point; on a pattern it needs white paper, with so wide a margin."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": paper} if paper else None
    axes.text(x, y, text, ha="center", va="center", fontsize=size, bbox=box, **how)


def box(axes: Axes, x: float, y: float, wide: float, tall: float, look: Look, text: str = "", *more: float, **how: Any):
    """A rectangle with a text in its middle; `more` is for `write`, and `how` for matplotlib's `Rectangle`."""
    from matplotlib.patches import Rectangle

    looks: dict[str, Any] = {"ec": "white", "zorder": 1, **how}
    axes.add_patch(Rectangle((x, y), wide, tall, fc=look[0], hatch=look[1], **looks))
    if text:
        write(axes, x + wide / 2, y + tall / 2, text, *more, zorder=max(3, looks["zorder"] + 1))


def bar(axes: Axes, row: float, begin: float, length: float, look: Look, text: str = "", *more: float, **how: Any):
    """A bar in a row, with a text in its middle; `more` is for `write`, and `how` for matplotlib's `barh`."""
    looks: dict[str, Any] = {"edgecolor": "white", "height": 0.7, **how}
    axes.barh(row, length, left=begin, color=look[0], hatch=look[1], **looks)
    if text:
        write(axes, begin + length / 2, row, text, *more)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str = "-|>", **how: Any) -> None:
    """An arrow between two points."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": style, "color": "black", "shrinkA": 0, "shrinkB": 0} | how)


def key(figure: Figure, axes: Axes, looks: Mapping[str, Look], *more: Any, place: Any = "outside lower center") -> None:
    """The meaning of each look, and of lines that have labels of their own, outside of the panels."""
    bars = [axes.barh([0], [0], color=c, hatch=h, edgecolor="white", label=name) for name, (c, h) in looks.items()]
    handles: list[Any] = [*bars, *more]
    figure.legend(handles=handles, loc=place, ncols=len(handles), frameon=False)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """The first row at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def runs(spans_of: Mapping[str, Sequence[Span]], title: str) -> Figure:
    """One rank's runs, one below the other: a row of what it computes and a row of what is sent, with their names."""
    together, rows = [], []
    for number, (name, spans) in enumerate(spans_of.items()):
        for part in ("computed", "sent"):
            lane = f"{number} {part}"  # rows are drawn in the order of the alphabet
            found = [replace(span, lane=lane) for span in spans if (span.lane == "compute") == (part == "computed")]
            together += found
            rows += [f"{name}: {part}" if part == "computed" else part] if found else []
    figure = draw(together, title, "virtual seconds")
    figure.axes[0].set_yticks(range(len(rows)), rows)
    return figure
