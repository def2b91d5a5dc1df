"""The lesson of `minitrain.pipeline_parallel.gpipe`: what its demo claims is in `small.py`."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel.small import demo_of
from minitrain.pipeline_parallel import gpipe, schedules


def demo(world: World) -> list[Claim]:
    """Trains a GPT by GPipe; the table shows what is sent and held, the bubble, and one device's gradients."""
    return demo_of(world, gpipe.step, schedules.gpipe(world.size, 8))
