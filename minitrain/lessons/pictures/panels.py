"""What pictures of several chapters begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
