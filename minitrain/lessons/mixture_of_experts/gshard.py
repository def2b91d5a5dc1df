"""The lesson of `minitrain.mixture_of_experts.gshard`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
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
        *_small_form(world, experts, capacity_factor),
        shown.gshard_loss(world, GShard, experts),
        *shown.gshard_places(world, GShard, experts, capacity_factor),
        shown.gshard_second(world, GShard, experts),
        *lesson.same_when_split(world, make, shown.LEPIKHIN),
        lesson.without_a_place(world, make, "derived"),
    ]
    lesson.timed(world, GShard(256, experts))
    return claims


def _small_form(world: World, experts: int, capacity_factor: float) -> list[Claim]:
    one = torch.eye(experts, dtype=torch.float64, device=world.device)
    even = lesson.balanced_scores(world, experts)
    *_, loss = gshard.route(even, one)
    lopsided = lesson.lopsided_scores(world, shown.SIZE, experts, seed=world.rank)
    chosen, _, _ = gshard.route(lopsided, one, torch.zeros_like(lopsided[:, 0]), capacity_factor)
    most = torch.bincount(chosen[chosen >= 0], minlength=experts).max().item()
    places = costs.capacity(shown.SIZE, experts, capacity_factor, choices=2)
    balance, line = costs.gshard_loss_at_balance(1.0, experts), f"{shown.LEPIKHIN}, algorithm 1"
    what = "small form: "

    def route(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gshard.route(x, weight, full.uniform(x[None], 1, "second")[0, :, 0], capacity_factor)

    full = GShard(experts + 3, experts, capacity_factor=capacity_factor)
    return [
        Claim(
            what + "loss at perfect balance", "α/E²", balance, loss.item(), "1", line, tolerance=lesson.EXACT, key=True
        ),
        Claim(what + "most tokens of an expert", "⌊c · 2T/E⌋", places, most, "1", line, relation="<=", key=True),
        *lesson.like_full_form(world, full, route),
    ]
