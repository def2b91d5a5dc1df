"""The lesson of `minitrain.pipeline_parallel.vertical_sync`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Rows
from minitrain.pipeline_parallel import schedules, vertical_sync
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by vertical sync; the table shows versions kept, staleness, and the equation."""
    microbatches = 16
    rows, n = Rows("Narayanan et al. 2019, §3.3"), world.size
    training = versions.Training(world, vertical_sync.train, microbatches)
    schedule = schedules.vertical_sync(n, microbatches)
    title = f"vertical sync: {n} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    stale = "n−1", [costs.vertical_sync_staleness(n)] * n
    # A micro-batch's activations travel with the number of its version.
    message = ACTIVATIONS + 4
    versions.add_claims(rows, world, training, ("n", costs.vertical_sync_versions(n)), stale, message)
    rows.add(
        "versions of the weights that the last micro-batch meets on its way",
        "1",
        1,
        training.met(microbatches - 1),
        "1",
    )
    return rows.claims()
