"""The lesson of `minitrain.pipeline_parallel.pipedream`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.executor import SAMPLES, SEQ
from minitrain.pipeline_parallel import pipedream, schedules
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World, microbatches: int = 16, hidden: int = 16) -> list[Claim]:
    """Trains a GPT without a flush by weight stashing; the table shows versions kept, staleness, and the equation.

    Args:
        microbatches: N, of the whole training; at least 2(n−1), so that a steady state exists.
        hidden: Width of the GPT, which has two blocks for each rank.
    """
    schedule = schedules.pipedream(world.size, microbatches)
    training = versions.Training(world, pipedream.train, microbatches, hidden)
    title = f"weight stashing: {world.size} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    activations = 4 * SAMPLES * SEQ * hidden  # bytes of a micro-batch's activations, and of their gradients
    return [
        *versions.claims_of(world, "pipedream", schedule, training, hidden),
        Claim(
            "versions of the weights that the last micro-batch meets on its way",
            "n",
            world.size,
            training.met(microbatches - 1),
            source=versions.PIPEDREAM,
        ),
        versions.sent(world, training, microbatches, activations, "A", "Narayanan et al. 2021, §3.2"),
    ]
