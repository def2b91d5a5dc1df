"""The lesson of `minitrain.mixture_of_experts.switch`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
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
    claims = [
        *_small_form(world, experts, capacity_factor, loss_factor),
        *shown.switch_losses(world, Switch, experts, loss_factor),
        *shown.switch_capacity(world, Switch, experts, capacity_factor),
        *shown.precision(world, Switch, experts),
        *lesson.same_when_split(world, make, "derived"),
    ]
    lesson.timed(world, Switch(256, experts))
    return claims


def _small_form(world: World, experts: int, capacity_factor: float, loss_factor: float) -> list[Claim]:
    one = torch.eye(experts, dtype=torch.float64, device=world.device)
    even = lesson.balanced_scores(world, experts)
    *_, loss = switch.route(even, one, experts, loss_factor)
    lopsided = lesson.lopsided_scores(world, shown.SIZE, experts, seed=world.rank)
    chosen, _, _ = switch.route(lopsided, one, capacity_factor)
    most = torch.bincount(chosen[chosen >= 0], minlength=experts).max().item()
    places = costs.capacity(shown.SIZE, experts, capacity_factor)
    balance, source = costs.switch_loss_at_balance(loss_factor), f"{shown.FEDUS}, §2.2"
    what = "small form: "
    return [
        Claim(
            what + "loss at perfect balance", "α", balance, loss.item(), "1", source, tolerance=lesson.EXACT, key=True
        ),
        Claim(what + "most tokens of an expert", "⌊c · T/E⌋", places, most, "1", source, relation="<=", key=True),
        *lesson.like_full_form(
            world,
            Switch(experts + 3, experts, capacity_factor=capacity_factor, loss_factor=loss_factor),
            partial(switch.route, capacity_factor=capacity_factor, loss_factor=loss_factor),
        ),
    ]
