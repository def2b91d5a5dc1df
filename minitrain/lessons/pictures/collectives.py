"""The pictures of the lessons of collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.comm import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def side_by_side(timelines: dict[str, Timeline]) -> Figure:
    """A picture of several algorithms on one time scale, one below the other: which rank sends when."""
    from matplotlib.figure import Figure

    sent = {name: [s for s in line.spans if s.kind == "send"] for name, line in timelines.items()}
    ranks = 1 + max((span.rank for spans in sent.values() for span in spans), default=0)
    end = max((span.end for spans in sent.values() for span in spans), default=1.0)
    figure = Figure(figsize=(9, 0.8 + len(sent) * (0.7 + 0.28 * ranks)), layout="constrained")
    for row, (name, spans) in enumerate(sent.items()):
        axes = figure.add_subplot(len(sent), 1, row + 1)
        for span in spans:
            width = 1e6 * (span.end - span.start)
            bar = axes.barh(span.rank, width, left=1e6 * span.start, color="#009E73", edgecolor="white", hatch="||")
            if span.end - span.start > 0.012 * end * (1 + len(span.label)):
                box = {"fc": "w", "ec": "none", "pad": 0.8}
                axes.bar_label(bar, [span.label], label_type="center", fontsize=7, bbox=box)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_ylim(ranks - 0.4, -0.6)
        axes.set_xlim(0, 1e6 * end * 1.01)
        done = max((span.end for span in spans), default=0.0)
        axes.set_title(f"{name}: {1e6 * done:.0f} virtual µs", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("virtual µs; a bar is a message on its way out")
    return figure
