"""The lesson of `minitrain.mixture_of_experts.switch`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import capacity as shown
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import switch
from minitrain.mixture_of_experts.full.switch import Switch


def demo(world: World, experts: int = 8, capacity_factor: float = 1.25, loss_factor: float = 0.01) -> list[Claim]:
    """Routes tokens to one expert; the table shows the loss at balance, places, dropped tokens, and why in float32.

    Args:
        experts: Number of experts.
        capacity_factor: Places, in parts of what balanced tokens would need.
        loss_factor: α, of the auxiliary loss.
    """

    def make(count: int) -> Switch:
        return Switch(count, count, capacity_factor=capacity_factor, jitter=0.01)

    world.figure(lambda: lesson.picture_of(lesson.example(Switch(4, 4), world)))
    full, small = partial(Switch, capacity_factor=capacity_factor, loss_factor=loss_factor), switch.route
    route = partial(small, capacity_factor=capacity_factor, loss_factor=loss_factor)
    claims = [
        *lesson.like_full_form(world, full(experts + 3, experts), route),
        *shown.switch_losses(world, Switch, small, experts, loss_factor),
        *shown.switch_capacity(world, Switch, small, experts, capacity_factor),
        *shown.precision(world, Switch, experts),
        shown.jitter(world, Switch),
        lesson.same_when_split(world, make),
    ]
    lesson.timed(world, Switch(256, experts))
    return claims
