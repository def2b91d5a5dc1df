"""The lesson of `minitrain.mixture_of_experts.noisy_top_k`: both of its losses."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts import noisy_top_k
from minitrain.mixture_of_experts.full.noisy_top_k import NoisyTopK


def demo(world: World) -> list[Claim]:
    """Routes tokens to their k best experts; the table shows both losses of a router."""
    rows, experts, choices = Rows("Shazeer et al. 2017, §4"), 8, 2
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

    world.figure(lambda: pictures.slots(lesson.route_scores(NoisyTopK(4, 4), lesson.eight_tokens(world))))
    return rows.claims()


def loss(scores: Tensor, choices: int, importance_factor: float, load_factor: float) -> float:
    """The loss without noise, where all scores are below 0; then the smooth load, too, is a number of tokens."""
    one = torch.eye(scores.shape[1], dtype=scores.dtype, device=scores.device)
    nothing, hardly_any = torch.zeros_like(scores), 100 * one  # softplus(−100) is 10⁻⁴⁴
    return noisy_top_k.route(scores, one, hardly_any, nothing, choices, importance_factor, load_factor)[2].item()
