"""The pictures of the lessons of data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitrain.comm.timeline import Span
from minitrain.lessons.pictures.panels import Figure, panels, runs


def steps(spans_of: Mapping[str, Sequence[Span]]) -> Figure:
    """Rank 0's four steps, one below the other."""
    return runs(spans_of, "A step in four ways")


def distances(paths: dict[int, list[float]]) -> Figure:
    """Distances from the optimum on rank 0, on a logarithmic scale; a line per H."""
    figure, (axes,) = panels(7, 2.8)
    for (every, path), color in zip(paths.items(), ("#000000", "#009E73", "#0072B2", "#D55E00"), strict=True):
        axes.semilogy(range(1, len(path) + 1), path, color=color, label=f"H = {every}", lw=1)
    axes.set_xlabel("step")
    axes.set_ylabel("distance of rank 0\nfrom the optimum of all")
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def losses(found: Mapping[tuple[str, int], float]) -> Figure:
    """The losses over H, a line per form."""
    figure, (axes,) = panels(7, 2.8)
    for name, color, marker in zip(("local SGD", "DiLoCo"), ("#0072B2", "#D55E00"), "os", strict=True):
        periods = [every for form, every in found if form == name]
        axes.plot(periods, [found[name, every] for every in periods], color=color, marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(periods, [str(every) for every in periods])
    axes.set_xlabel("H, the steps between two averages")
    axes.set_ylabel("loss on held-out text")
    axes.legend(frameon=False)
    return figure
