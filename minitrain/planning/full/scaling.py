"""The curve of scaling: the efficiency of the best layouts on up to 16,384 GPUs, with published runs beside it.

`python -m minitrain.plan --curve curve.svg` draws it. Strong scaling keeps the batch; weak scaling keeps the sequences
of each GPU. Chapter 03 has the formula (`minitrain.costs.scaling`), and `minitrain.roofline.scaling` is its small form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minitrain.composition.settings import Model, Steps
from minitrain.costs import scaling as costs
from minitrain.costs.fabric import Fabric
from minitrain.planning.full import proposals, published
from minitrain.planning.full.time_model import Cluster, alone, fitted, step_time
from minitrain.planning.search import layouts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 16_384
# From failure to failure of one GPU: 419 in 54 days on 16,384 of them (Grattafiori et al. 2024, section 3.3.4).
HOURS = 54 * 24 * 16_384 / 419
# Seconds for which a save stops training, and of a restart: our choice, with which 16,384 GPUs keep as much of their
# time as that report says, more than 90 %.
SAVING, RESTART = 10.0, 600.0
# Published runs, by their numbers in `published_runs.csv`.
SERIES = {
    "Megatron-LM: 177B, strong": (256, 253, 257),
    "Llama 3: 405B, strong": (473, 417),
    "Narayanan et al. 2021: 2B to 1T, weak": (466, 218, 467, 220, 221, 222, 468, 224, 469, 226),
}


def curve(
    model: Model, steps: Steps, gpus: int, cluster: Cluster, weak: bool = False, most: int = MOST
) -> dict[int, float]:
    """Efficiency of the fastest layout that fits, by number of GPUs.

    Args:
        steps: Its batch is that of all GPUs; with `weak` it grows with their number.
        gpus: The number that has this batch; others are a power of two more or less.
    """
    count, found = gpus, {}
    while 2 * count <= most:
        count *= 2
    # A quarter from point to point. Above the first point a batch may be too small to be shared by so many; below the
    # last one, fewer GPUs do not hold the model either.
    while count >= 1:
        batch, rest = divmod(steps.batch * count, gpus) if weak else (steps.batch, 0)
        now = replace(steps, batch=batch)
        full = count <= cluster.per_node or count % cluster.per_node == 0
        some = layouts(model, now, count, cluster.per_node) if full and not rest else ()
        best = proposals.fastest(model, now, some, cluster)
        if best:
            bar = step_time(model, best[0], now, cluster)
            found[count] = proposals.efficiency(model, best[0], now, cluster, bar)
        elif found:
            break
        count //= 4
    return found


def with_failures(found: dict[int, float]) -> dict[int, float]:
    """Efficiencies, less what failures undo."""
    return {count: costs.kept(count, HOURS, SAVING, RESTART) * each for count, each in found.items()}


def published_curves() -> dict[str, dict[int, float]]:
    """Efficiencies of published runs: the model of time for one GPU, over GPUs times the seconds that were measured."""
    runs = {run.number: run for run in published.read()}
    found: dict[str, dict[int, float]] = {}
    for name, numbers in SERIES.items():
        for run in (runs[number] for number in numbers):
            one = alone(run.model, run.steps, fitted(run.machine, Fabric(run.per_node)))
            found.setdefault(name, {})[run.layout.ranks] = one / run.layout.ranks / run.seconds
    return found


def picture(model: Model, steps: Steps, gpus: int, cluster: Cluster, most: int = MOST) -> Figure:
    """Planned curves of a model, strong and weak, and published ones of other models."""
    # Here, since a plan without a picture needs no matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    strong, weak = (curve(model, steps, gpus, cluster, grows, most) for grows in (False, True))
    each = f"{steps.batch / gpus:.3g}"
    axes.plot(*points(strong), "o-", color="#D55E00", label=f"strong: {steps.batch:,} sequences per step")
    axes.plot(*points(with_failures(strong)), "o:", color="#D55E00", mfc="white", label="strong, with failures")
    axes.plot(*points(weak), "s-", color="#0072B2", label=f"weak: {each} sequences per GPU and step")
    for (name, found), marker in zip(published_curves().items(), "^v*", strict=True):
        axes.plot(*points(found), f"{marker}--", color="#777777", lw=0.8, label=f"measured, {name}")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="GPUs", ylabel="scaling efficiency", ylim=(0, 1.03), title=f"{model.preset}: what n GPUs gain")
    ticks = sorted(strong | weak)
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="lower left")
    return figure


def points(found: dict[int, float]) -> tuple[list[int], list[float]]:
    """Numbers of GPUs from few to many, and their efficiencies."""
    counts = sorted(found)
    return counts, [found[count] for count in counts]
