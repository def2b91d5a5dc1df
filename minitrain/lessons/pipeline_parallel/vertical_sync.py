"""The lesson of `minitrain.pipeline_parallel.vertical_sync`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import schedules, vertical_sync


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by vertical sync; the table shows versions kept, staleness, and the equation."""
    rows, n = Rows("Narayanan et al. 2019, §3.3"), world.size
    training = versions.observed(world, vertical_sync.train, schedules.vertical_sync(n, 16), "vertical sync")
    stale = "p−1", [costs.vertical_sync_staleness(n)] * n
    # A micro-batch's activations travel with the number of its version.
    message = ACTIVATIONS + 4
    versions.add_claims(rows, world, training, ("p", costs.vertical_sync_versions(n)), stale, message)
    what = "versions of the weights that the last micro-batch meets on its way"
    rows.add(what, "1", 1, training.met(training.microbatches - 1), "1")
    return rows.claims()
