"""Pictures of ZeRO: a step with and without prefetching, a unit's life in stage 3, and bytes on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minitrain.comm.timeline import Span, draw
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.pictures.panels import Figure, bar, name_rows, panels, write

if TYPE_CHECKING:
    from minitrain.zero.full.stage3 import Event


def prefetching(spans: list[Span]) -> Figure:
    """Rank 0's two steps, one below the other."""
    return draw(spans, "A step of stage 3: each unit waited for, and the next one prefetched", "virtual seconds")


# What happens to a unit's parameters, and to its gradients; the last of each frees the memory.
STEPS = {"parameters": ("gather", "forward", "backward", "free"), "gradients": ("gradient", "reduce-scatter", "shard")}


def spans_of(events: Sequence[Event]) -> list[tuple[str, str, str, int, int]]:
    """Unit, kind, what happens, begin and end in a step of stage 3; "time" is the number of the event.

    Each event lasts until the next one of the same unit and kind. Between these nothing is in memory.
    """
    spans = []
    for unit in dict.fromkeys(event.unit for event in events):
        for kind, steps in STEPS.items():
            own = [(now, event.what) for now, event in enumerate(events) if event.unit == unit and event.what in steps]
            for (begin, what), (end, _) in zip(own, [*own[1:], (len(events), "")], strict=True):
                if what != steps[-1]:
                    spans.append((unit, kind, what, begin, end))
    return spans


def life(events: Sequence[Event]) -> Figure:
    """Of each unit's parameters and gradients, when they are in memory in full on this rank, through a step."""
    from matplotlib.patches import Patch

    spans = spans_of(events)
    rows = [f"{unit}: {kind}" for unit in dict.fromkeys(event.unit for event in events) for kind in STEPS]
    figure, (axes,) = panels(9, 1.4 + 0.36 * len(rows))
    for unit, kind, what, begin, end in spans:
        row, moving = rows.index(f"{unit}: {kind}"), what in ("gather", "reduce-scatter")
        look, edge = (("white", ""), LOOKS[kind][0]) if moving else (LOOKS[kind], "white")
        bar(axes, row, begin, end - begin, look, edgecolor=edge)
        if kind == "parameters" and not moving:
            write(axes, (begin + end) / 2, row, "use", 7, color="white")
    turn = max((end for _, _, what, _, end in spans if what == "forward"), default=0) + 0.5
    axes.axvline(turn, color="#999999", linestyle="--", linewidth=0.8)
    for x, side, text in ((turn - 0.2, "right", "forward"), (turn + 0.2, "left", "backward")):
        axes.text(x, len(rows) - 0.6, text, ha=side, va="bottom", fontsize=9, color="#555555")
    name_rows(axes, rows)
    axes.set(xlim=(0, len(events) + 0.2), xlabel="events of a step, in their order")
    axes.set_title("Stage 3: what is in memory in full on a rank, besides its shards", fontsize=10)
    (blue, plain), (orange, striped) = LOOKS["parameters"], LOOKS["gradients"]
    handles = [
        Patch(facecolor="white", edgecolor=blue, label="parameters: gather"),
        Patch(facecolor=blue, edgecolor="white", hatch=plain, label="use"),
        Patch(facecolor=orange, edgecolor="white", hatch=striped, label="gradients: fill up"),
        Patch(facecolor="white", edgecolor=orange, label="reduce-scatter"),
        Patch(facecolor="none", edgecolor="none", label="empty: freed"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return figure


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
