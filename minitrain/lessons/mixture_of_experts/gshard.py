"""The lesson of `minitrain.mixture_of_experts.gshard`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import capacity as shown
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts.full.gshard import GShard


def demo(world: World, experts: int = 8, capacity_factor: float = 1.0) -> list[Claim]:
    """Routes tokens to two experts; the table shows the loss, who gets places, and how often a second is taken.

    Args:
        experts: Number of experts.
        capacity_factor: Places, in parts of what balanced tokens would need.
    """

    def make(count: int) -> GShard:
        return GShard(count, count, capacity_factor=capacity_factor)

    world.figure(lambda: lesson.picture_of(lesson.example(GShard(4, 4, capacity_factor=0.75), world)))
    claims = [
        shown.gshard_loss(world, GShard, experts),
        *shown.gshard_places(world, GShard, experts, capacity_factor),
        shown.gshard_second(world, GShard, experts),
        *lesson.same_when_split(world, make, shown.LEPIKHIN),
        lesson.without_a_place(world, make, "derived"),
    ]
    lesson.timed(world, GShard(256, experts))
    return claims
