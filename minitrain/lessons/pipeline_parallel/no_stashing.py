"""The lesson of `minitrain.pipeline_parallel.no_stashing`: one version is kept, and backwards find another.

Why the result is the gradient of no function is derived, and worked out for two weights, in notebook 11c.
"""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import no_stashing, schedules


def demo(world: World) -> list[Claim]:
    """Trains a GPT with neither flush nor stashing; the table shows how many backwards find other weights."""
    rows, schedule = Rows("derived"), schedules.no_stashing(world.size, 16)
    training = versions.observed(world, no_stashing.train, schedule, "no stashing")
    what = "bytes of versions of its weights that this rank keeps, one version of Wᵣ bytes"
    rows.add(what, "Wᵣ", training.bytes, training.kept, "B", "Narayanan et al. 2019, §3.3")
    mixed = training.microbatches - 1 if world.rank < world.size - 1 else 0
    what = "backwards of this rank r that find other weights than their forward"
    rows.add(what, "N − 1 for r < p−1, else 0", mixed, training.mixed(), "1")
    return rows.claims()
