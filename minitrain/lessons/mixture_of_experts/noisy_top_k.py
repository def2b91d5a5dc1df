"""The lesson of `minitrain.mixture_of_experts.noisy_top_k`: both losses, and a load that is smooth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts import noisy_top_k
from minitrain.mixture_of_experts.full.noisy_top_k import NoisyTopK, chances
from minitrain.models.counter_rng import normal


def demo(world: World) -> list[Claim]:
    """Routes tokens to their k best experts; the table shows both losses, and what the smooth load counts."""
    rows, experts, choices = Rows("Shazeer et al. 2017, §4"), 8, 2
    full = NoisyTopK(experts + 3, experts, choices=choices)

    def with_its_noise(x: Tensor, weight: Tensor, noise_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = normal(full.uniform(x[None], experts, "scores"))[0]
        return noisy_top_k.route(x, weight, noise_weight, noise, choices)

    lesson.same_as_full_form(rows, world, full, with_its_noise)

    exact, compared = {"tolerance": lesson.EXACT, "absolute": lesson.EXACT}, {"how": "compared"}
    alone = torch.full((2 * experts, experts), -2.0, dtype=torch.float64, device=world.device)
    alone[:, :choices] = -1.0  # each token chooses the same experts, and each of them weighs as much
    highest = costs.importance_loss_at_worst(0.3, experts, choices)
    what = "importance loss, k experts used alone and alike"
    rows.add(what, "w · (E/k − 1)", highest, loss(alone, choices, 0.3, 0.0), "1", **compared, **exact)
    best = [sorted(range(4), key=lambda expert: -row[expert])[:2] for row in lesson.PERCENT]
    by_load = 0.2 * costs.squared_variation([sum(expert in two for two in best) for expert in range(4)])
    what, found = "load loss of the eight tokens of notebook 12a", loss(lesson.eight_tokens(world), 2, 0.0, 0.2)
    rows.add(what, "w · CV²", by_load, found, "1", **compared, **exact)

    smooth_load(rows, world, experts, choices)
    world.figure(lambda: pictures.slots(lesson.route_scores(NoisyTopK(4, 4), lesson.eight_tokens(world))))
    return rows.claims()


def loss(scores: Tensor, choices: int, importance_factor: float, load_factor: float) -> float:
    """The loss without noise, where all scores are below 0; then the smooth load, too, is a number of tokens."""
    one = torch.eye(scores.shape[1], dtype=scores.dtype, device=scores.device)
    nothing, hardly_any = torch.zeros_like(scores), 100 * one  # softplus(−100) is 10⁻⁴⁴
    return noisy_top_k.route(scores, one, hardly_any, nothing, choices, importance_factor, load_factor)[2].item()


def smooth_load(rows: Rows, world: World, experts: int, choices: int, tokens: int = 1 << 15) -> None:
    """Claim that the full form's smooth load is what the number of tokens is on average.

    A chance is the mean of "chosen or not" over the noise of one score, the others given. So given these the
    difference of both has mean 0 and one of two values that lie 1 apart, and those of an expert are independent from
    token to token: Hoeffding's bound holds for a width of 1. It fails once in 10⁹ times.
    """
    x, router = lesson.random_scores(world, tokens, experts), NoisyTopK(experts, experts, choices=choices)
    counted = lesson.route_scores(router, x).load() / tokens
    router.set_position(seed=0, step=0)
    scores, deviation = router.noisy(x[None], x[None])  # W = 1: x is its own scores
    smooth = chances(x[None], scores, deviation, choices).sum((0, 1)) / tokens
    what, formula = "distance of smooth load from tokens counted, part of all", "√(ln(2/10⁻⁹)/2T)"
    bound = math.sqrt(math.log(2e9) / (2 * tokens))
    rows.near(what, smooth.detach(), counted, bound, formula, "Shazeer et al. 2017, appendix A")
