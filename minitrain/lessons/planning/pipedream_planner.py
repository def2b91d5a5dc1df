"""The lesson of `minitrain.planning.pipedream_planner`: all plans tried, and published plans.

PipeDream's paper and code do not agree on what a stage and a cut cost, and the published plans depend on it. Here are
the costs of its `optimizer.py`; the paper's are the technique's own default. With the published profiles, 16 workers in
a flat network of 10 Gbit/s, and 4 workers for GNMT-8:

- The costs of `optimizer.py` give all four published plans: 15-1 for VGG-16 and AlexNet, 16 for ResNet-50, 1-1-1-1.
- The paper's give the same, but 8-8 for ResNet-50, since its all-reduce sends m times as much as a ring. In cluster B,
  two servers of 8 with 25 Gbit/s between them, they give 16 as published.
- In levels, 15-1 cannot come out: the stages of the upper level are whole servers. So the published plans of 4 × 4
  workers must have been made for a flat network of 16.
"""

from __future__ import annotations

from pathlib import Path

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.planning.chains import SOME
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning import profile
from minitrain.planning.pipedream_planner import paper_cut, paper_stage, plan
from minitrain.planning.profile import Layer

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


def code_cut(activations: float, m: int, bandwidth: float) -> float:
    """A cut there: the replicas after it receive side by side."""
    return 2 * activations / (m * bandwidth)


COST_MODELS = {"paper": (paper_stage, paper_cut), "optimizer.py": (code_stage, code_cut)}


def demo(world: World) -> list[Claim]:
    """Plans stages with replicas; the table shows all plans tried, and PipeDream's own plans."""
    rows = Rows("Narayanan et al. 2019, §3.1")
    for workers in range(1, 7):
        best = found = 0.0
        for chain in SOME[world.rank :: world.size]:
            layers = layers_of(chain)
            sizes = [layer.activation for layer in layers], [layer.weight for layer in layers]
            best += costs.best_plan(chain, *sizes, workers, 4.0)
            found += slowest(layers, plan(layers, [(workers, 4.0)])[1], 4.0)
        case, formula = f"{workers} workers", "min over all stages and replicas"
        # A plan that is slower than the best one shows in the sum.
        what = "time per minibatch of the plans of this rank's share of 84 chains of 8 layers, on 1 to 6 workers"
        rows.add(f"{what}, added up", formula, best, found, "s", case=case, how="compared", tolerance=1e-12)

    formula = "min over stages of max(max(Σt, 4(m − 1)/m · Σw/B)/m, 2a/(mB))"
    source = "Narayanan et al. 2019, table 1; profiles and costs of its code (optimizer.py)"
    for name, (file, workers, replicas) in PUBLISHED.items():
        first = plan_of(file, workers, ETHERNET, "optimizer.py")[0]
        what = "replicas of the first stage of VGG-16, AlexNet, ResNet-50 on 16 workers, GNMT-8 on 4"
        rows.add(what, formula, first, replicas[0], "1", source, case=name, how="published")

    return rows.claims()


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


def plan_of(file: str, workers: int, bandwidth: float, model: str) -> tuple[int, ...]:
    """The replicas of each stage in a flat network."""
    found = plan(profile.read(PROFILES / f"{file}.txt"), [(workers, bandwidth)], *COST_MODELS[model])
    return tuple(replicas for _, _, replicas in found[1])
