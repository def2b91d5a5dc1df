"""The bar of time, which returns at the end of each chapter: where a step's seconds go, and the days they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitrain.comm.pictures import TIME as LOOKS
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.aim import SEQUENCES
from minitrain.costs.roofline import MACHINES
from minitrain.costs.time_bar import Bar
from minitrain.lessons.pictures.panels import Figure, panels
from minitrain.planning.full.time_model import Cluster, step_time


def course_step(gpus: int = 64, sequences: int = 1, experts: int = 0, network: float = 50e9, **layout: Any) -> Bar:
    """A step of the course's training: 7 billion parameters on nodes of eight H100, products at half of the peak.

    Args:
        gpus: Their number; the layout determines the number of data-parallel ranks.
        sequences: In a micro-batch.
        experts: In place of every second block's MLP; 0: none.
        network: Bytes per second of each GPU's card.
        layout: Options of `minitrain.composition.layout_settings.Layout`: `zero=3`, `tp=8`, …

    Raises:
        ValueError: The layout does not fit the GPUs or the batch.
    """
    model = Model("gpt2", layers=32, hidden=4096, heads=32, positions=2048, experts=experts)
    dp = gpus // (layout.get("pp", 1) * layout.get("tp", 1))
    cut = Layout(dp=dp, microbatches=SEQUENCES // (dp * sequences), **layout)
    cluster = Cluster(MACHINES["H100"]._replace(network=network))
    return step_time(model, cut, Steps(batch=SEQUENCES, dtype="bfloat16"), cluster)


def time_bar(bars: Mapping[str, Bar], steps: float, title: str = "") -> Figure:
    """One bar for each layout, as long as its step, and the days of the whole training next to it.

    Hidden communication is a thin bar below, since it takes no time of its own.

    Args:
        bars: Name of a layout -> its bar.
        steps: Steps of the training.
        title: Above the picture.
    """
    figure, (axes,) = panels(9, 1.3 + 0.62 * len(bars))
    seen = set()
    for row, bar in enumerate(bars.values()):
        computed, working = bar.compute + bar.again, bar.compute + bar.again + bar.idle
        pieces = (
            ("compute", 0.0, bar.compute, 0.0, 0.5),
            ("computed again", bar.compute, bar.again, 0.0, 0.5),
            ("idle in the pipeline", computed, bar.idle, 0.0, 0.5),
            ("communication, exposed", working, bar.exposed, 0.0, 0.5),
            ("communication, hidden", computed - bar.hidden, bar.hidden, 0.36, 0.18),
        )
        for kind, begin, length, below, height in pieces:
            if length:
                seen.add(kind)
                color, hatch = LOOKS[kind]
                axes.barh(row + below, length, height, begin, color=color, hatch=hatch, edgecolor="white")
        words = f"{seconds(bar.step)} per step, {days(bar.days(steps))}"
        axes.annotate(words, (bar.step, row), (6, 0), textcoords="offset points", va="center", fontsize=9)
    handles = [
        axes.barh([0], [0], color=color, hatch=hatch, edgecolor="white", label=kind)
        for kind, (color, hatch) in LOOKS.items()
        if kind in seen
    ]
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(bar.step for bar in bars.values()))
    axes.set_xlabel("seconds")
    axes.set_title(title, fontsize=10)
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)), frameon=False)
    return figure


def seconds(value: float) -> str:
    """Two or three digits."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def days(value: float) -> str:
    """Whole days, or with one decimal where there are few."""
    return f"{value:,.0f} days" if value >= 10 else f"{value:.1f} days"
