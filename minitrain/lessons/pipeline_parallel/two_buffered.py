"""The lesson of `minitrain.pipeline_parallel.two_buffered`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.pipeline_parallel.executor import SAMPLES, SEQ
from minitrain.pipeline_parallel import schedules, two_buffered
from minitrain.pipeline_parallel.full.drawing import draw_run


def demo(world: World, batches: int = 4, extra: int = 1, hidden: int = 16) -> list[Claim]:
    """Trains a GPT without a flush by PipeDream-2BW; the table shows two versions, staleness 1, and the equation.

    Args:
        batches: Updates of the whole training; at least 3, so that a steady state exists.
        extra: k − n: by how much the micro-batches per update exceed the ranks.
        hidden: Width of the GPT, which has two blocks for each rank.
    """
    k = world.size + extra
    microbatches = batches * k
    schedule = schedules.two_buffered(world.size, microbatches, k)
    training = versions.Training(world, two_buffered.train, microbatches, hidden, k)
    title = f"PipeDream-2BW: {world.size} ranks, {batches} batches of {k} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    activations = 4 * SAMPLES * SEQ * hidden  # bytes of a micro-batch's activations, and of their gradients
    return [
        *versions.claims_of(world, "2bw", schedule, training, hidden),
        Claim(
            "versions of the weights that the last micro-batch meets on its way",
            "1",
            1,
            training.met(microbatches - 1),
            source=versions.TWO_BUFFERED,
        ),
        versions.sent(world, training, microbatches, activations, "A", "Narayanan et al. 2021, §3.2"),
    ]
