"""The lesson of `minitrain.pipeline_parallel.without_flush`: however long the training is, it has one bubble."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel.versions import Training
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import pipedream


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush, with few micro-batches and with many; the table shows the bubble of both."""
    rows = Rows("Huang et al. 2019, §2.3, for one step")
    for count in (8, 24):
        spans = Training(world, pipedream.train, count).spans
        time = world.size * max(span.end for span in spans)  # of all ranks; the clocks of all start at 0
        idle = time - sum(span.end - span.start for span in spans if span.lane == "compute")
        theory, what = (
            float(costs.bubble_over_total(world.size, count)),
            "bubble over the total time of N micro-batches",
        )
        case = f"N = {count}"
        rows.add(what, "(p−1)/(N+p−1)", theory, idle / time, "1", case=case, how="virtual clock")
    return rows.claims()
