"""The lesson of `minitrain.pipeline_parallel.two_buffered`: what its demo claims is in `versions.py`."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.one_device import ACTIVATIONS
from minitrain.lessons.rows import Rows
from minitrain.pipeline_parallel import schedules, two_buffered
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World) -> list[Claim]:
    """Trains a GPT without a flush by PipeDream-2BW; the table shows two versions, staleness 1, and the equation."""
    batches, extra = 4, 1
    rows, n, k = Rows("Narayanan et al. 2021, 2BW, §3.1"), world.size, world.size + extra
    training = versions.Training(world, two_buffered.train, batches * k, k)
    schedule = schedules.two_buffered(n, batches * k, k)
    title = f"PipeDream-2BW: {n} ranks, {batches} batches of {k} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    stale = "1", [costs.two_buffered_staleness()] * n
    versions.add_claims(rows, world, training, ("2", costs.two_buffered_versions()), stale, ACTIVATIONS)
    return rows.claims()
