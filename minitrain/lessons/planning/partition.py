"""The lesson of `minitrain.planning.partition`: all cuts tried, and real ranks on the virtual clock."""

from __future__ import annotations

from itertools import accumulate

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.planning.chains import SOME, pipeline_time
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.partition import partition

LAYERS = (3, 1, 1, 2, 4, 1, 2, 5, 1, 3, 2)  # virtual seconds, whole numbers, so that no time rounds


def demo(world: World, minibatches: int = 6) -> list[Claim]:
    """Cuts chains of layers into stages; the table shows all cuts tried, and ranks on the virtual clock.

    Args:
        minibatches: K, which pass through a pipeline of all ranks.
    """
    rows = Rows("Bokhari 1988")
    for p in range(2, 7):  # stages
        # The best of all cuts for each chain, so a slower one shows in the sum.
        best = sum(costs.best_cut(chain, p) for chain in SOME)
        found = sum(max(stage_times(chain, partition(chain, p)[1])) for chain in SOME)
        what = "slowest stages of 84 chains of 8 layers, added up, in 2 to 6 stages"
        rows.add(what, "min over C(7, p−1) cuts", best, found, "s", case=f"{p} stages", how="compared")

    p, count = world.size, len(LAYERS)
    alone = [1] * (p - 1) + [count - p + 1]
    cuts = {"best": partition(LAYERS, p)[1], "first layers alone": alone, "last layers alone": alone[::-1]}
    cuts["equally many"] = [count // p + (stage < count % p) for stage in range(p)]
    what = f"time of {minibatches} minibatches through a pipeline of all ranks, for the best cut and three others"
    for name, counts in cuts.items():
        stages = stage_times(LAYERS, counts)
        took = pipeline_time(world, stages, minibatches)
        rows.time(what, "Σt + (K − 1) max t", costs.flow(stages, minibatches), took, "derived", case=name)

    return rows.claims()


def stage_times(seconds, counts) -> list[float]:
    """Seconds of the stages of a cut, added up layer by layer."""
    return [sum(seconds[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]
