"""The lesson of `minitrain.planning.pipedream_planner`: all plans tried, its limits, published plans, and real ranks.

PipeDream's paper and code do not agree on what a stage and a cut cost, and the published plans depend on it. Here are
the code's two versions; the paper's is the technique's own default. With the published profiles, 16 workers in a flat
network of 10 Gbit/s, and 4 workers for GNMT-8:

- The costs of `optimizer.py` give all four published plans: 15-1 for VGG-16 and AlexNet, 16 for ResNet-50, 1-1-1-1.
- The paper's give the same, but 8-8 for ResNet-50, since its all-reduce sends m times as much as a ring. In cluster B,
  two servers of 8 with 25 Gbit/s between them, they give 16 as published.
- `optimizer_graph_hierarchical.py` adds all-reduce and computing up. It gives 15-1 for AlexNet, but 13-2-1 for VGG-16
  and 8-5-3 for ResNet-50. In its example, VGG-16 on 4 workers with 1 GB/s, it gives 3-1, as do the others.
- In levels, 15-1 cannot come out: the stages of the upper level are whole servers. So the published plans of 4 × 4
  workers must have been made for a flat network of 16.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, lcm
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.planning.chains import SOME, pipeline_time
from minitrain.planning import pipedream_planner, profile
from minitrain.planning.pipedream_planner import plan
from minitrain.planning.profile import Layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Narayanan et al. 2019, §3.1"
PROFILES = Path(profile.__file__).parent / "profiles"
ETHERNET = 10e9 / 8  # bytes per second between the servers of cluster A
# The profile, workers, and the plan that the paper's table 1 has for them.
PUBLISHED = {
    "VGG-16": ("vgg16", 16, (15, 1)),
    "AlexNet": ("alexnet", 16, (15, 1)),
    "ResNet-50": ("resnet50", 16, (16,)),
    "GNMT-8": ("gnmt8", 4, (1, 1, 1, 1)),
}


def code_stage(seconds: float, weights: float, m: int, bandwidth: float) -> float:
    """A stage in `optimizer.py`: a ring's all-reduce, twice, and it overlaps."""
    return max(seconds, 4 * (m - 1) / m * weights / bandwidth) / m


def hierarchical_stage(seconds: float, weights: float, m: int, bandwidth: float) -> float:
    """A stage in `optimizer_graph_hierarchical.py`: nothing overlaps."""
    return (seconds + 4 * (m - 1) / m * weights / bandwidth) / m


def code_cut(activations: float, m: int, bandwidth: float) -> float:
    """A cut in both: the replicas after it receive side by side."""
    return 2 * activations / (m * bandwidth)


COST_MODELS = {
    "paper": (pipedream_planner.paper_stage, pipedream_planner.paper_cut),
    "optimizer.py": (code_stage, code_cut),
    "hierarchical": (hierarchical_stage, code_cut),
}


def demo(world: World) -> list[Claim]:
    """Plans stages with replicas; the table shows all plans tried, the limits, PipeDream's own plans, and ranks."""
    world.figure(picture)
    return [best_of_all(world), *limits(), *published(), *on_ranks(world)]


def layers_of(chain: tuple[int, ...]) -> list[Layer]:
    """A chain whose layers pass on less and weigh more from one to the next, as those of networks for images do."""
    # In milliseconds, and a cut before a heavy layer is not always the best.
    return [Layer(f"{n}", 400 * t, 600 * t, (9 - n) * (4 - t), (n + 1) * t) for n, t in enumerate(chain)]


def slowest(layers: list[Layer], stages: list[tuple[int, int, int]], bandwidth: float) -> float:
    """Seconds per minibatch of a plan, from its stages, by the paper's costs."""
    times = [2 * layers[end].activation / bandwidth for _, end, _ in stages[:-1]]
    for begin, end, m in stages:
        within = layers[begin : end + 1]
        compute = sum(layer.forward + layer.backward for layer in within) / 1000
        times.append(max(compute, 2 * (m - 1) * sum(layer.weight for layer in within) / bandwidth) / m)
    return max(times)


def best_of_all(world: World) -> Claim:
    """The claim on the plans of chains that this rank tries, its share of 84; any plan that is slower shows."""
    cases = {}
    for workers in range(1, 7):
        predicted = measured = 0.0
        for chain in SOME[world.rank :: world.size]:
            layers = layers_of(chain)
            sizes = [layer.activation for layer in layers], [layer.weight for layer in layers]
            predicted += costs.best_plan(chain, *sizes, workers, 4.0)
            measured += slowest(layers, plan(layers, [(workers, 4.0)])[1], 4.0)
        formula = "min over all stages and replicas"
        cases[f"{workers} workers"] = Claim("", formula, predicted, measured, "s", PAPER, "compared", tolerance=1e-12)
    what = "time per minibatch of the plans of this rank's share of 84 chains of 8 layers, on 1 to 6 workers, added up"
    return fold(what, cases, key=True)


def limits() -> list[Claim]:
    """Claims on networks that are infinitely fast, or infinitely slow for weights while activations cost nothing."""
    fast, slow = {}, {}
    for workers in range(1, 7):
        for chain in SOME[::4]:
            layers = layers_of(chain)
            bound = sum(chain) / workers
            name = f"{chain} on {workers}"
            measured = plan(layers, [(workers, inf)])[0]
            fast[name] = Claim("", "Σt/M", bound, measured, "s", "derived", "compared", tolerance=1e-12)
            silent = [layer._replace(activation=0) for layer in layers]
            predicted = costs.best_cut(chain, workers)
            measured = plan(silent, [(workers, 1e-9)])[0]
            slow[name] = Claim("", "slowest stage of the best cut", predicted, measured, "s", "derived", "compared")
    return [
        fold("time per minibatch in an infinitely fast network, 21 chains: as data parallelism", fast, key=True),
        fold("the same where only all-reduces take time, endlessly: as the best pipeline without replicas", slow),
    ]


def published() -> list[Claim]:
    """Claims on PipeDream's own profiles, with the costs of its code."""
    first, stages = {}, {}
    source = "Narayanan et al. 2019, table 1; profiles and costs of its code (optimizer.py)"
    for name, (file, workers, expected) in PUBLISHED.items():
        found = plan_of(file, workers, ETHERNET, "optimizer.py")
        formula = "min over stages of max(max(Σt, 4(m − 1)/m · Σw/B)/m, 2a/(mB))"
        first[name] = Claim("", formula, found[0], expected[0], "1", source, "published")
        stages[name] = Claim("", formula, len(found), len(expected), "1", source, "published")
    names = "VGG-16, AlexNet, ResNet-50 on 16 workers, GNMT-8 on 4"
    return [
        fold(f"replicas of the first stage of {names}", first, key=True),
        fold(f"stages of {names}", stages, key=True),
    ]


def plan_of(file: str, workers: int, bandwidth: float, model: str) -> tuple[int, ...]:
    """The replicas of each stage in a flat network."""
    found = plan(profile.read(PROFILES / f"{file}.txt"), [(workers, bandwidth)], *COST_MODELS[model])
    return tuple(replicas for _, _, replicas in found[1])


def on_ranks(world: World) -> list[Claim]:
    """Claims on plans of all ranks on the virtual clock, messages free: how fast, and which is faster."""
    n, seconds = world.size, (4, 1, 3, 2, 6, 2, 5, 1)
    shapes = {(n,), (1,) * n, (max(1, n - 1), 1)[: 1 + (n > 1)], (1, max(1, n - 1))[: 1 + (n > 1)]}
    cases, times = {}, []
    for replicas in sorted(shapes):
        # The first stages have one layer each, the last one has the rest.
        ends = [*range(len(replicas)), len(seconds)]
        stages = [(sum(seconds[i:j]), m) for (i, j), m in zip(pairwise(ends), replicas, strict=True)]
        cycle = lcm(*replicas)
        predicted = max(cycle // m * time for time, m in stages)
        # When the first minibatches are through, each cycle takes as long as the one before it.
        measured = pipeline_time(world, stages, 4 * cycle) - pipeline_time(world, stages, 3 * cycle)
        times.append((predicted / cycle, measured / cycle))
        name = "-".join(map(str, replicas))
        cases[name] = Claim("", "max t/m", predicted / cycle, measured / cycle, "virtual s", PAPER, "virtual clock")
    wrong = sum((a < b) != (x < y) for a, x in times for b, y in times)
    return [
        fold("time per minibatch of all ranks' replicas, in several plans", cases, key=True),
        Claim("pairs of these plans whose order by time is not the predicted one", "0", 0, wrong, source="derived"),
    ]


def picture() -> Figure:
    """Where time and weights of VGG-16 are, and the published cut between its two stages."""
    from matplotlib.figure import Figure

    layers = profile.read(PROFILES / "vgg16.txt")
    stages = plan(layers, [(16, ETHERNET)], *COST_MODELS["optimizer.py"])[1]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    parts = {
        "time": [layer.forward + layer.backward for layer in layers],
        "weights": [layer.weight for layer in layers],
        "activations, at a cut after the layer": [layer.activation for layer in layers],
    }
    for number, (name, sizes) in enumerate(parts.items()):
        places = [place + 0.27 * (number - 1) for place in range(len(layers))]
        axes.bar(places, [100 * size / sum(sizes) for size in sizes], width=0.27, label=name)
    for _, end, _ in stages[:-1]:
        axes.axvline(end + 0.5, color="black", linestyle="--")
    axes.set_xticks(range(len(layers)), [layer.name for layer in layers], rotation=90, fontsize="small")
    title = "-".join(str(replicas) for *_, replicas in stages)
    axes.set(ylabel="per cent of the sum", title=f"VGG-16 on 16 workers, 10 Gbit/s: {title}")
    axes.legend()
    return figure
