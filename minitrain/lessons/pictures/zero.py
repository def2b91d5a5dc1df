"""Pictures of ZeRO: a step with and without prefetching, and bytes on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minitrain.comm.timeline import Span, draw
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.pictures.panels import Figure, panels


def prefetching(spans: list[Span]) -> Figure:
    """Rank 0's two steps, one below the other."""
    return draw(spans, "A step of stage 3: each unit waited for, and the next one prefetched", "virtual seconds")


def bars(found: Mapping[int, Sequence[Mapping[str, int]]]) -> Figure:
    """A bar for each rank of what it holds, stage by stage, and a line where its peak was."""
    figure, (axes,) = panels(9, 4)
    ranks = len(found[0])
    held = {number * (ranks + 1) + rank: found[number][rank] for number in found for rank in range(ranks)}
    bottoms = [0.0] * len(held)
    for name, (color, hatch) in LOOKS.items():
        heights, look = [each[name] / 1e3 for each in held.values()], {"hatch": hatch, "edgecolor": "white"}
        axes.bar(list(held), heights, 0.85, bottoms, color=color, label=name, **look)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    peaks = [each["peak"] / 1e3 for each in held.values()]
    axes.hlines(peaks, [x - 0.42 for x in held], [x + 0.42 for x in held], "black", label="peak")
    axes.set_xticks([number * (ranks + 1) + (ranks - 1) / 2 for number in found], [f"stage {s}" for s in found])
    axes.set_ylabel("kB on each rank")
    axes.set_title(f"What each of {ranks} rank{'s' * (ranks > 1)} holds, and the peak of a step")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
