"""The bar of time, which returns at the end of each chapter: where a step's seconds go, and the days they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minitrain.comm.pictures import TIME as LOOKS
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.aim import SEQUENCES
from minitrain.costs.roofline import MACHINES
from minitrain.costs.time_bar import Bar
from minitrain.lessons.pictures.panels import Axes, Figure, Look, bar, key, name_rows, panels
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
    key(figure, axes, draw_bars(axes, bars, steps))
    axes.set_title(title, fontsize=10)
    return figure


def draw_bars(axes: Axes, bars: Mapping[str, Bar], steps: float) -> dict[str, Look]:
    """The bars of `time_bar` on axes of a figure; returns the look of each kind of time that occurs."""
    seen = set()
    for row, its in enumerate(bars.values()):
        computed, working = its.compute + its.again, its.compute + its.again + its.idle
        pieces = (
            ("compute", 0.0, its.compute),
            ("computed again", its.compute, its.again),
            ("idle in the pipeline", computed, its.idle),
            ("communication, exposed", working, its.exposed),
            ("communication, hidden", computed - its.hidden, its.hidden),
        )
        for kind, begin, length in pieces:
            if length:
                seen.add(kind)
                hidden = kind == "communication, hidden"
                bar(axes, row + 0.36 * hidden, begin, length, LOOKS[kind], height=0.18 if hidden else 0.5)
        words = f"{seconds(its.step)} per step, {days(its.days(steps))}"
        axes.annotate(words, (its.step, row), (6, 0), textcoords="offset points", va="center", fontsize=9)
    name_rows(axes, list(bars))
    axes.set(xlim=(0, 1.45 * max(its.step for its in bars.values())), xlabel="seconds")
    return {kind: look for kind, look in LOOKS.items() if kind in seen}


def seconds(value: float) -> str:
    """Two or three digits."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def days(value: float) -> str:
    """Whole days, or with one decimal where there are few."""
    return f"{value:,.0f} days" if value >= 10 else f"{value:.1f} days"
