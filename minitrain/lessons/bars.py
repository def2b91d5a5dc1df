"""The bar of time, which returns at the end of each chapter: where a step's seconds go, and how many days they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minitrain.costs.roofline import Bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# kind -> (colour, hatch): as on timelines, so that computing and sending look alike in the whole course.
LOOKS = {
    "compute": ("#56B4E9", ""),
    "communication, hidden": ("#009E73", "..."),
    "communication, exposed": ("#D55E00", "///"),
}


def time_bar(bars: Mapping[str, Bar], steps: float, title: str = "") -> Figure:
    """One bar for each layout: a step's seconds as a part of 100, and the days of the whole training beside it.

    A bar's length is the step. Hidden communication lies in a thin bar below it, since it takes no time of its own.

    Args:
        bars: Name of a layout -> its bar.
        steps: Steps of the training.
        title: Above the picture.
    """
    from matplotlib.figure import Figure

    # On a white ground of its own, so that it can be read on a dark page, too.
    figure = Figure(figsize=(9, 1.3 + 0.62 * len(bars)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for row, bar in enumerate(bars.values()):
        share = 100 / bar.step
        pieces = (
            ("compute", 0.0, bar.compute, 0.0, 0.5),
            ("communication, exposed", bar.compute, bar.exposed, 0.0, 0.5),
        )
        hidden = ("communication, hidden", bar.compute - bar.hidden, bar.hidden, 0.36, 0.18)
        for kind, left, length, below, height in (*pieces, hidden):
            colour, hatch = LOOKS[kind]
            axes.barh(
                row + below,
                share * length,
                left=share * left,
                height=height,
                color=colour,
                hatch=hatch,
                edgecolor="white",
            )
        axes.text(102, row, f"{seconds(bar.step)} per step, {days(bar.days(steps))}", va="center", fontsize=9)
    handles = [axes.barh([0], [0], color=c, hatch=h, edgecolor="white", label=kind) for kind, (c, h) in LOOKS.items()]
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 140)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("% of a step")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(LOOKS), frameon=False)
    return figure


def seconds(value: float) -> str:
    """Two or three digits."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def days(value: float) -> str:
    """Whole days, or with one decimal where there are few."""
    return f"{value:,.0f} days" if value >= 10 else f"{value:.1f} days"
