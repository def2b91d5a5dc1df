"""The pictures of the lessons of planning: cuts, plans, bytes by layout and by stage, errors of the model of time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from minitrain.comm.pictures import BYTES, TIME
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import planning as costs
from minitrain.lessons.pictures.panels import Figure, panels
from minitrain.planning.memory_model import GPT, held
from minitrain.planning.partition import partition
from minitrain.planning.plan import Coordinate, predict
from minitrain.planning.profile import Layer


def cuts(seconds: Sequence[float]) -> Figure:
    """The slowest stage for each number of stages, between its bounds."""
    figure, (axes,) = panels(7, 3)
    stages = range(1, len(seconds) + 1)
    least, most = zip(*(costs.cut_bounds(seconds, p) for p in stages), strict=True)
    axes.fill_between(stages, least, most, color="#DDDDDD", label="bounds")
    axes.plot(stages, [partition(seconds, p)[0] for p in stages], "o-", color="#D55E00", label="best cut")
    axes.plot(stages, [sum(seconds) / p for p in stages], ":", color="black", label="Σt/p")
    axes.set(xlabel="stages", ylabel="seconds of the slowest stage", title=f"layers of {seconds} s")
    axes.legend()
    return figure


def table_of_cuts(seconds: Sequence[float], p: int) -> Figure:
    """The table that `partition` fills: a row for each number of stages, and the best cut's way through it framed."""
    from matplotlib.patches import Rectangle

    figure, (axes,) = panels(10, 3.2)
    counts = partition(seconds, p)[1]
    on_the_way = {(stages, sum(counts[:stages])) for stages in range(1, p + 1)}
    for stages, j in product(range(1, p + 1), range(1, len(seconds) + 1)):
        if j < stages:
            continue  # a stage would be empty
        best = partition(seconds[:j], stages)[0]
        corner, shade = (j - 0.5, stages - 0.5), 1 - 0.75 * (best / sum(seconds)) ** 0.5
        framed = (stages, j) in on_the_way
        looks = {
            "edgecolor": "#D55E00" if framed else "white",
            "linewidth": 2.5 if framed else 0.5,
            "zorder": 1 + framed,
        }
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=(shade, shade, 1 - (1 - shade) / 3), **looks))
        if framed or stages == 1 and j % 8 == 0:
            color = "white" if shade < 0.55 else "black"
            axes.text(j, stages, f"{1000 * best:.0f}", ha="center", va="center", fontsize=7, color=color, zorder=3)
    axes.set(xlim=(0.4, len(seconds) + 0.6), ylim=(0.4, p + 0.6), xlabel="the first j layers", ylabel="stages")
    axes.set_yticks(range(1, p + 1))
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    return figure


def vgg16(layers: Sequence[Layer], stages: Sequence[tuple[int, int, int]]) -> Figure:
    """Where time and weights of VGG-16 are, and the cut between the stages of a plan for 16 workers."""
    figure, (axes,) = panels(9, 3.4)
    columns = zip(*((layer.forward + layer.backward, layer.weight, layer.activation) for layer in layers), strict=True)
    looks = {
        "time": TIME["compute"][0],
        "weights": BYTES["parameters"][0],
        "activations, at a cut after the layer": BYTES["activations"][0],
    }
    for number, ((name, color), sizes) in enumerate(zip(looks.items(), columns, strict=True)):
        places = [place + 0.27 * (number - 1) for place in range(len(layers))]
        axes.bar(places, [100 * size / sum(sizes) for size in sizes], width=0.27, color=color, label=name)
    for _, end, _ in stages[:-1]:
        axes.axvline(end + 0.5, color="black", linestyle="--")
    axes.set_xticks(range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize="small")
    title = "-".join(str(replicas) for *_, replicas in stages)
    axes.set(ylabel="per cent of the sum", title=f"VGG-16 on 16 workers, 10 Gbit/s: {title}")
    axes.legend()
    return figure


def layouts() -> Figure:
    """What a GPU holds of a GPT with 1.3 billion parameters, by layout."""
    gpt = GPT(24, 2048, 16, 2048, 50257)
    options: dict[str, dict[str, Any]] = {
        "one GPU": {"i": 0},
        "full\nrecomputation": {"i": 0, "full": True},
        **{f"8 GPUs\nZeRO {zero}": {"i": 0, "d": 8, "zero": zero} for zero in (1, 2, 3)},
        **{f"8 stages\nstage {i}": {"p": 8, "i": i, "m": 16} for i in (0, 7)},
    }
    figure, (axes,) = panels(9, 3.4)
    stack(axes, list(options), [held(gpt, **option) for option in options.values()])
    axes.set(ylabel="GB on a GPU", title="1.3 · 10⁹ parameters, float32, micro-batches of one sequence of 2,048")
    axes.legend()
    return figure


def stages_of_gpt3() -> Figure:
    """The bytes on a rank of each pipeline rank of GPT-3, 12 stages next to 64."""
    model = Model(preset="175b")
    figure, both = panels(9, 3.2, 2)
    for axes, pp in zip(both, (12, 64), strict=True):
        layout = Layout(dp=8, pp=pp, tp=8, sequence_parallel=True, zero=1, microbatches=2 * pp, recompute="selective")
        plans = [predict(model, layout, Steps(batch=16 * pp, dtype="bfloat16"), Coordinate(rank)) for rank in range(pp)]
        stack(axes, range(pp), [each.held for each in plans], width=1.0)
        axes.set(title=f"175b, {layout}", xlabel="pipeline rank", ylabel="GB on a rank")
    figure.axes[0].legend(fontsize="small")
    return figure


def stack(axes: Any, places: Sequence[Any], held: Sequence[dict[str, int]], **looks: Any) -> None:
    """A bar of gigabytes at each place, one kind on top of the other."""
    bottom = [0.0] * len(held)
    for kind in held[0]:
        heights = [each[kind] / 1e9 for each in held]
        color, hatch = BYTES[kind]
        axes.bar(places, heights, bottom=bottom, label=kind, color=color, hatch=hatch, **looks)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]


def rounds() -> Figure:
    """Steps that each of 16 candidates gets, next to an even division of the same budget."""
    figure, (axes,) = panels(7, 3)
    budget, done = 256, [0] * 16
    blues = ("#B5DCF3", "#56B4E9", "#0072B2", "#00395A")
    for color, (count, steps) in zip(blues, costs.halving_rounds(16, budget), strict=True):
        axes.bar(range(count), [steps] * count, bottom=done[:count], color=color, label=f"round of {count}")
        done = [each + steps * (place < count) for place, each in enumerate(done)]
    axes.axhline(budget / 16, color="black", linestyle="--", label="divided evenly")
    axes.set(xlabel="candidate, the best one first", ylabel="steps", title=f"{budget} steps for 16 candidates, η = 2")
    axes.legend()
    return figure
