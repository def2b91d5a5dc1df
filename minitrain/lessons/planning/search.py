"""The lesson of `minitrain.planning.search`: pruning loses nothing; our times next to published ones."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from minitrain.comm import World
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.roofline import MACHINES
from minitrain.lessons.claims import Claim
from minitrain.lessons.pictures import planning as pictures
from minitrain.lessons.rows import Rows
from minitrain.planning.full import published, time_model
from minitrain.planning.search import layouts, search

# The largest error of the model of time on these trainings, for a claim: of our figure, so that it is 30 % of theirs.
OFF = 0.25
SPACES = {"4 GPUs of 2 GB": (8, 4, 2.0), "6 GPUs of 1 GB": (9, 6, 1.0)}  # layers, GPUs, GB of each


def demo(world: World, keep: int = 10) -> list[Claim]:
    """Compares the search with an exhaustive one, and the model of time with what was published.

    Args:
        keep: How many layouts are searched for.
    """
    world.figure(pictures.errors)
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

    texts = {  # by unit
        "TFLOP/s": "operations per second of a GPU, seven models of up to 146 · 10⁹ parameters",
        "s": "seconds of a step of 22 and 175 · 10⁹ parameters, recomputed fully and in part",
    }
    for each in published.comparisons(most_stages=8):  # `published.rows` has more, which take longer to simulate
        more = {"source": each.source, "case": f"{each.what}, {each.layout}", "how": "published", "tolerance": OFF}
        rows.add(texts[each.unit], "by the time of a step", each.here, each.published, each.unit, **more)
    return rows.claims()


def space(layers: int, gpus: int, gigabytes: float) -> tuple[Any, Any, Any, Any]:
    """The arguments of a search that is small enough for the exhaustive one: only some layouts fit into the memory."""
    model, steps = Model("gpt2", layers=layers, hidden=1024, heads=16), Steps(batch=2 * gpus, dtype="bfloat16")
    machine = MACHINES["A100 80 GB"]._replace(size=1e9 * gigabytes)
    cluster = time_model.Cluster(machine, per_node=min(4, gpus))
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
