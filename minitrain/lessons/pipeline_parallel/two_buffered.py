"""The lesson of `minitrain.pipeline_parallel.two_buffered`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import schedules, two_buffered


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by PipeDream-2BW; the table shows two versions, staleness 1, and the equation."""
    rows, n, k = Rows("Narayanan et al. 2021, 2BW, §3.1"), world.size, world.size + 1
    schedule = schedules.two_buffered(n, 4 * k, k)  # 4 updates, so that a steady state exists
    training = versions.observed(world, two_buffered.train, schedule, "PipeDream-2BW", k)
    stale = "1", [costs.two_buffered_staleness()] * n
    versions.add_claims(rows, world, training, ("2", costs.two_buffered_versions()), stale, ACTIVATIONS)
    return rows.claims()
