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


def panels(width: float, height: float, count: int = 1, **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels side by side; `how` is for matplotlib's `subplots`.

    On a white ground of its own, so that it can be read on a dark page, too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = list(figure.subplots(1, count, squeeze=False, **how)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


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
