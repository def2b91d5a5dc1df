"""The lesson of `minitrain.pipeline_parallel.one_f_one_b`: what its demo claims is in `small.py`."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel.small import demo_of
from minitrain.pipeline_parallel import one_f_one_b, schedules


def demo(world: World) -> list[Claim]:
    """Trains a GPT by 1F1B; the table shows what is sent and held, the bubble, and one device's gradients."""
    return demo_of(world, one_f_one_b.step, schedules.one_f_one_b(world.size, 8))
