"""The lesson of `minitrain.mixture_of_experts.gshard`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import capacity as shown
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import gshard
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
        *_like_full_form(world, experts, capacity_factor),
        *shown.gshard_losses(world, GShard, gshard.route, experts),
        *shown.gshard_places(world, GShard, _all_second_choices, experts, capacity_factor),
        shown.gshard_second(world, GShard, experts),
        lesson.same_when_split(world, make),
        lesson.without_a_place(world, make),
    ]
    lesson.timed(world, GShard(256, experts))
    return claims


def _like_full_form(world: World, experts: int, capacity_factor: float) -> list[Claim]:
    full = GShard(experts + 3, experts, capacity_factor=capacity_factor)

    def route(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gshard.route(x, weight, full.uniform(x[None], 1, "second")[0, :, 0], capacity_factor)

    return lesson.like_full_form(world, full, route)


def _all_second_choices(x: Tensor, weight: Tensor, capacity_factor: float) -> tuple[Tensor, Tensor, Tensor]:
    return gshard.route(x, weight, torch.zeros_like(x[:, 0]), capacity_factor)
