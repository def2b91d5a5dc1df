"""The lesson of `minitrain.pipeline_parallel.vertical_sync`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.executor import SAMPLES, SEQ
from minitrain.pipeline_parallel import schedules, vertical_sync
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World, microbatches: int = 16, hidden: int = 16) -> list[Claim]:
    """Trains a GPT without a flush by vertical sync; the table shows versions kept, staleness, and the equation.

    Args:
        microbatches: N, of the whole training; at least 2(n−1), so that a steady state exists.
        hidden: Width of the GPT, which has two blocks for each rank.
    """
    schedule = schedules.vertical_sync(world.size, microbatches)
    training = versions.Training(world, vertical_sync.train, microbatches, hidden)
    title = f"vertical sync: {world.size} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    message = 4 * (SAMPLES * SEQ * hidden + 1)  # a micro-batch's activations, and the number of the version
    return [
        *versions.claims_of(world, "vertical-sync", schedule, training, hidden),
        Claim(
            "versions of the weights that the last micro-batch meets on its way",
            "1",
            1,
            training.met(microbatches - 1),
            source=versions.PIPEDREAM,
            key=True,
        ),
        versions.sent(world, training, microbatches, message, "(A + 4)", "derived"),
    ]
