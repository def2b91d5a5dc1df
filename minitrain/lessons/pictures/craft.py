"""The pictures of the chapter craft: curves over a run, or over the positions of a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.lessons.pictures.panels import Figure, panels

BLUE, ORANGE, GRAY, BLACK = "#0072B2", "#D55E00", "#BBBBBB", "#000000"
LOSS = "loss, nats per byte"


def curves(lines: Mapping[str, tuple[Any, Any, dict[str, Any]]], x: str, y: str, scale: str = "linear") -> Figure:
    """Curves by name, each with its points and what matplotlib's `plot` is told of its look."""
    figure, (axes,) = panels(7, 2.6)
    for name, (places, values, look) in lines.items():
        axes.plot(list(places), list(values), label=name, **look)
    axes.set(xlabel=x, ylabel=y, yscale=scale)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def spikes(losses: Sequence[float], limits: Sequence[float], found: Sequence[int], threshold: float = 6.0) -> Figure:
    """Losses over the steps, the limit, and the spikes."""
    steps, dots = range(len(losses)), {"color": ORANGE, "marker": "o", "ls": ""}
    lines = {
        "loss of the step": (steps, losses, {"color": BLACK, "lw": 1}),
        f"limit: median + {threshold:g} deviations": (steps, limits, {"color": BLUE, "lw": 1, "ls": "--"}),
        "spikes": (found, [losses[number] for number in found], dots),
    }
    return curves(lines, "step", LOSS)


def own_spike(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """The loss and the gradient's norm over the steps, of each run by name; both logarithmic."""
    figure, panes = panels(8, 2.8, 2)
    for (name, found), color in zip(runs.items(), (ORANGE, BLUE, BLACK, GRAY), strict=False):
        for axes, values in zip(panes, found, strict=True):
            axes.plot(values, color=color, lw=1, label=name if axes is panes[0] else None)
    for axes, what in zip(panes, (LOSS, "norm of the gradient"), strict=True):
        axes.set(xlabel="step", title=what, yscale="log")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(runs), fontsize=9)
    return figure


def rewind(clean: Mapping[int, float], rewound: Mapping[int, float], unattended: Mapping[int, float]) -> Figure:
    """Losses over the batches: with garbage, without it, and rewound."""
    lines = {
        "garbage trained on": (unattended, unattended.values(), {"color": ORANGE, "lw": 1}),
        "no garbage in the data": (clean, clean.values(), {"color": GRAY, "lw": 4}),
        "rewound": (rewound, rewound.values(), {"color": BLACK, "lw": 1}),
    }
    return curves(lines, "batch", LOSS)


def branches(losses: Mapping[str, Sequence[float]], begins: Mapping[str, int], first: int = 60) -> Figure:
    """The loss over the steps of runs by schedule and length; a run of `begins` is drawn from where it branches off."""
    colors, lines = {"cosine": BLUE, "constant": BLACK, "WSD": ORANGE}, {}
    longest = max(map(len, losses.values()))
    for name, values in losses.items():
        kind = name.partition(", ")[0]
        begin = begins.get(name, first)
        dots = {"marker": "o", "markevery": [0]} if name in begins else {}
        look = {"color": colors[kind], "ls": "--" if len(values) < longest else "-", "lw": 1.5} | dots
        lines[name] = (range(begin, len(values) + 1), values[begin - 1 :], look)
    return curves(lines, "step", "expected loss")
