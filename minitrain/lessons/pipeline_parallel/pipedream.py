"""The lesson of `minitrain.pipeline_parallel.pipedream`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import pipedream, schedules


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by weight stashing; the table shows versions kept, staleness, and the equation."""
    rows, n = Rows("Narayanan et al. 2019, §3.3"), world.size
    training = versions.observed(world, pipedream.train, schedules.pipedream(n, 16), "weight stashing")
    kept = "(p−r)", costs.pipedream_versions(n, world.rank)
    stale = "p−1−r", [costs.pipedream_staleness(n, rank) for rank in range(n)]
    versions.add_claims(rows, world, training, kept, stale, ACTIVATIONS)
    return rows.claims()
