"""The lesson of `minitrain.planning.search`: pruning loses nothing; our times next to published ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from minitrain.comm import World
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.roofline import MACHINES
from minitrain.lessons.claims import Claim, fold
from minitrain.planning.full import published
from minitrain.planning.full.time_model import Cluster, fits, least_time, step_time
from minitrain.planning.search import layouts, search

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARAYANAN, KORTHIKANTI = "Narayanan et al. 2021", "Korthikanti et al. 2022"
# The largest error of the model of time on these trainings, for a claim: of our figure, so that it is 30 % of theirs.
OFF = 0.25


class Space:
    """A search that is small enough for the exhaustive one: a GPU so small that only some layouts fit.

    Args:
        name: For the claims.
        layers: Of the model.
        gpus: Their number.
        gigabytes: Of a GPU's memory.
    """

    def __init__(self, name: str, layers: int, gpus: int, gigabytes: float):
        self.name, self.model = name, Model("gpt2", layers=layers, hidden=1024, heads=16)
        self.steps = Steps(batch=2 * gpus, dtype="bfloat16")
        machine = MACHINES["A100 80 GB"]._replace(size=1e9 * gigabytes)
        self.cluster = Cluster(machine, per_node=min(4, gpus))
        self.layouts = list(layouts(self.model, self.steps, gpus, self.cluster.per_node))

    def least(self, layout: Layout) -> float:
        return least_time(self.model, layout, self.steps, self.cluster)

    def fits(self, layout: Layout) -> bool:
        return fits(self.model, layout, self.steps, self.cluster.machine)

    def seconds(self, layout: Layout) -> float:
        return step_time(self.model, layout, self.steps, self.cluster).step

    def exhaustive(self, keep: int) -> list[tuple[float, Layout]]:
        """The fastest of all that fit, without pruning; the earlier one where two are as fast."""
        each = [(self.seconds(layout), layout) for layout in self.layouts if self.fits(layout)]
        return sorted(each, key=lambda pair: pair[0])[:keep]


SPACES = (("4 GPUs of 2 GB", 8, 4, 2.0), ("6 GPUs of 1 GB", 9, 6, 1.0))


def demo(world: World, keep: int = 10) -> list[Claim]:
    """Compares the search with an exhaustive one, and the model of time with what was published.

    Args:
        keep: How many layouts are searched for.
    """
    world.figure(picture)
    return [*pruning(keep), *printed(), *timed(), fastest_split()]


def pruning(keep: int) -> list[Claim]:
    """The claims on the search: the same layouts as without pruning, from bounds that are bounds."""
    missed, below = {}, {}
    for space in (Space(*each) for each in SPACES):
        name = space.name
        right = space.exhaustive(keep)
        found = search(space.layouts, space.least, space.fits, space.seconds, keep=keep)
        differ = sum(mine != its for mine, its in zip(found, right, strict=False)) + abs(len(found) - len(right))
        missed[name] = Claim("", "0", 0, differ, "1", "Land & Doig 1960", "compared")
        # Rounding: both are sums and quotients of a few numbers.
        early = sum(space.seconds(layout) < (1 - 1e-12) * space.least(layout) for layout in space.layouts)
        below[name] = Claim("", "0", 0, early, "1", "derived", "compared")
    what = f"places among the {keep} fastest layouts in which the search and an exhaustive one differ"
    return [
        fold(f"{what}, two spaces", missed, key=True),
        fold("layouts that take less time than their lower bound", below, key=True),
    ]


def printed() -> list[Claim]:
    """The claims on the columns of table 1 that follow from each other; all are rounded."""
    share, all_of = {}, {}
    for row in published.TABLE_1:
        name, source = f"{row.billions} · 10⁹", f"{NARAYANAN}, table 1"
        half = 0.5 / row.teraflops  # TFLOP/s are printed as whole numbers
        part = 100 * row.teraflops / 312
        share[name] = Claim("", "X/312", part, row.share, "%", source, "published", tolerance=half, absolute=0.5 + half)
        total = row.gpus * row.teraflops / 1000
        slack = total * half + 0.05
        all_of[name] = Claim("", "nX", total, row.petaflops, "PFLOP/s", source, "published", absolute=slack)
    return [
        fold("parts of an A100's peak that ten models reached", share),
        fold("operations per second of all GPUs, ten models", all_of),
    ]


def timed() -> list[Claim]:
    """The claims on the model of time; `published.rows` has more, which take longer to simulate."""
    cases: dict[str, dict[str, Claim]] = {"TFLOP/s": {}, "s": {}}
    for each in published.comparisons(most_stages=8):
        name, formula = f"{each.source}: {each.what}, {each.layout}", "operations / (n · seconds of a step)"
        claim = Claim("", formula, each.here, each.published, each.unit, each.source, "published", tolerance=OFF)
        cases[each.unit][name] = claim if each.unit == "TFLOP/s" else replace(claim, formula="seconds of a step")
    return [
        fold("operations per second of a GPU, seven models of up to 146 · 10⁹ parameters", cases["TFLOP/s"], key=True),
        fold("seconds of a step of 22 and 175 · 10⁹ parameters, recomputed fully and in part", cases["s"], key=True),
    ]


def fastest_split() -> Claim:
    """The claim on 162 · 10⁹ parameters over 64 GPUs: tensor parallelism fills a node, pipelines cross nodes."""
    source, batch = f"{NARAYANAN}, §5.4.1 and figure 13", published.SPLIT_BATCHES[0]
    what = "tensor-parallel ranks in the fastest of five splits of 64 GPUs, 162 · 10⁹ parameters"
    (_, here), (_, best) = published.fastest_split(batch), published.SPLIT_BEST
    return Claim(what, "argmin of the time", here, best, "ranks", source, "published", key=True)


def picture() -> Figure:
    """How far off the model of time is, for each published training."""
    from matplotlib.figure import Figure

    found = published.comparisons(most_stages=8)
    figure = Figure(figsize=(9, 0.9 + 0.32 * len(found)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for row, each in enumerate(found):
        axes.barh(row, 100 * each.off, 0.7, color="#0072B2" if each.unit == "s" else "#E69F00")
    names = [f"{each.what}, {each.layout} ({each.unit})" for each in found]
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("% by which the model of time is off what was measured")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
