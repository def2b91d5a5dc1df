"""The lesson of `minitrain.planning.search`: pruning loses nothing; our times next to published ones."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from minitrain.comm import World
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.fabric import Fabric
from minitrain.costs.roofline import MACHINES
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.full import published, time_model
from minitrain.planning.search import layouts, search

SPACES = {"4 GPUs of 2 GB": (8, 4, 2.0), "6 GPUs of 1 GB": (9, 6, 1.0)}  # layers, GPUs, GB of each


def demo(world: World, keep: int = 10) -> list[Claim]:
    """Compares the search with an exhaustive one, and the model of time with what was published.

    Args:
        keep: How many layouts are searched for.
    """
    rows = Rows()
    for name, sizes in SPACES.items():
        every, least, fits, seconds = arguments = space(*sizes)
        found, right = search(*arguments, keep=keep), exhaustive(*arguments, keep)
        differ = sum(mine != its for mine, its in zip_longest(found, right))
        what = f"places among the {keep} fastest layouts in which the search and an exhaustive one differ, two spaces"
        rows.add(what, "0", 0, differ, "1", "Land & Doig 1960", case=name, how="compared")
        # Rounding: both are sums and quotients of a few numbers.
        early = sum(seconds(layout) < (1 - 1e-12) * least(layout) for layout in every)
        what = "layouts that take less time than their lower bound"
        rows.add(what, "0", 0, early, "1", case=name, how="compared")

    # Runs without a pipeline, which take no time to simulate.
    runs = [run for run in published.read() if run.testing and run.layout.pp == 1]
    world.figure(lambda: published.picture(runs))
    off = published.errors([published.off(run) for run in runs])
    what = "median error of the planned speed on {} published runs that no constant was fitted on"
    rows.add(what.format(off.runs), "at most 6 %", 6, 100 * off.median, "%", relation="<=", how="published")
    return rows.claims()


def space(layers: int, gpus: int, gigabytes: float) -> tuple[Any, Any, Any, Any]:
    """The arguments of a search that is small enough for the exhaustive one: only some layouts fit into the memory."""
    model, steps = Model("gpt2", layers=layers, hidden=1024, heads=16), Steps(batch=2 * gpus, dtype="bfloat16")
    machine = MACHINES["A100 80 GB"]._replace(size=1e9 * gigabytes)
    cluster = time_model.Cluster(machine, Fabric(per_node=min(4, gpus)))
    return (
        list(layouts(model, steps, gpus, cluster.per_node)),
        lambda layout: time_model.least_time(model, layout, steps, cluster),
        lambda layout: time_model.fits(model, layout, steps, machine),
        lambda layout: time_model.step_time(model, layout, steps, cluster).step,
    )


def exhaustive(every, least, fits, seconds, keep: int) -> list[tuple[float, Layout]]:
    """The fastest of all that fit, without pruning; the earlier one where two are as fast."""
    found = [(seconds(layout), layout) for layout in every if fits(layout)]
    return sorted(found, key=lambda pair: pair[0])[:keep]
