"""The picture of a layout: what each pipeline rank holds, when it computes, and how the seconds of a step are spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minitrain.comm.pictures import BYTES, TIME
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.memory import GB, ROOM
from minitrain.pipeline_parallel.full.drawing import KINDS
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.planning.full import plan_time
from minitrain.planning.full.time_model import Cluster, stage_seconds, step_time
from minitrain.planning.plan import Coordinate, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Figure:
    """Three pictures, one below the other: memory, the timetable of the first micro-batches, the bar of time."""
    # Here, since a plan without a picture needs no matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.4), layout="constrained", facecolor="white")
    held, timetable, bar = figure.subplots(3, 1, gridspec_kw={"height_ratios": (5, 5, 1.2)})
    _draw_held(held, model, layout, steps, cluster)
    _draw_timetable(timetable, model, layout, steps, cluster)
    _draw_bar(bar, model, layout, steps, cluster)
    for axes in (held, timetable, bar):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_held(axes: Any, model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> None:
    plans = [predict(model, layout, steps, Coordinate(pp)) for pp in range(layout.pp)]
    bottom = [0.0] * layout.pp
    for kind, (color, hatch) in BYTES.items():
        heights = [each.held[kind] / GB for each in plans]
        axes.bar(range(layout.pp), heights, 0.8, bottom, color=color, hatch=hatch, edgecolor="white", label=kind)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    room = (1 - ROOM) * cluster.machine.size / GB
    axes.axhline(room, color="black", linestyle="--", label=f"{room:g} GB can be used")
    axes.set(title=f"What a rank holds: {model.preset}, {layout}", xlabel="pipeline rank", ylabel="GB")
    # Otherwise the bar of a single rank would fill the picture.
    axes.set_xlim(-0.5, max(layout.pp, 4) - 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="x-small", loc="upper right", framealpha=1)


def _draw_timetable(axes: Any, model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> None:
    # Enough to see how the pipeline fills, and how it goes on.
    m = min(layout.microbatches, 2 * layout.pp)
    each = stage_seconds(model, layout, steps, cluster)
    if not plan_time.splits_backward(layout):
        # Tensor-parallel layers do their whole backward in I.
        each = tuple(type(one)(one.forward, one.backward + one.weight, 0) for one in each)
    forward, backward, weight = zip(*each, strict=True)
    found = simulate(plan_time.schedule_of(layout, m), forward, backward, weight)
    for kind, (name, color, hatch) in KINDS.items():
        label = name
        for rank, row in enumerate(found.slots):
            bars = [(slot.start, slot.end - slot.start) for slot in row if slot.action.kind == kind]
            if bars:
                axes.broken_barh(
                    bars, (rank - 0.4, 0.8), facecolor=color, hatch=hatch, edgecolor="white", lw=0.3, label=label
                )
                label = "_"  # once in the legend
    part = "all" if m == layout.microbatches else f"{m} of {layout.microbatches}"
    axes.set(title=f"When it computes: {part} micro-batches of a step", xlabel="seconds", ylabel="pipeline rank")
    axes.set_ylim(layout.pp - 0.5, -0.5)
    # Room for the legend.
    axes.set_xlim(0, 1.2 * float(found.makespan))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="x-small", loc="upper right", framealpha=1)


def _draw_bar(axes: Any, model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> None:
    spent, left = step_time(model, layout, steps, cluster), 0.0
    parts = (spent.compute, spent.again, spent.idle, spent.exposed)
    kinds = ("compute", "computed again", "idle in the pipeline", "communication, exposed")
    for kind, seconds in zip(kinds, parts, strict=True):
        if seconds:
            color, hatch = TIME[kind]
            axes.barh(0, seconds, 0.7, left, color=color, hatch=hatch, edgecolor="white", label=kind)
            left += seconds
    axes.set(title=f"How {spent.step:.3g} seconds of a step are spent", xlabel="seconds", yticks=[])
    axes.set_xlim(0, 1.4 * spent.step)
    axes.legend(fontsize="x-small", loc="center right", framealpha=1)
