"""The lesson of `minitrain.pipeline_parallel.pipedream`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Rows
from minitrain.pipeline_parallel import pipedream, schedules
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by weight stashing; the table shows versions kept, staleness, and the equation."""
    microbatches = 16
    rows, n = Rows("Narayanan et al. 2019, §3.3"), world.size
    training = versions.Training(world, pipedream.train, microbatches)
    schedule = schedules.pipedream(n, microbatches)
    title = f"weight stashing: {n} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    kept = "(n−r)", costs.pipedream_versions(n, world.rank)
    stale = "n−1−r", [costs.pipedream_staleness(n, rank) for rank in range(n)]
    versions.add_claims(rows, world, training, kept, stale, ACTIVATIONS)
    return rows.claims()
