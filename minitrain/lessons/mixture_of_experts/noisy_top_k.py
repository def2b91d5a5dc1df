"""What the demo of `noisy_top_k` shows: both losses at their ends, what noise does, and two levels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.mixture_of_experts.common import (
    EXACT,
    balanced_scores,
    by_scores,
    dense,
    hoeffding,
    lopsided_scores,
    random_scores,
    unlike,
)
from minitrain.mixture_of_experts import noisy_top_k
from minitrain.mixture_of_experts.full.noisy_top_k import NoisyTopK, TwoLevel, chances
from minitrain.models.counter_rng import normal

SHAZEER = "Shazeer et al. 2017"


def choices_and_losses(world: World, router: Any, experts: int, choices: int) -> list[Claim]:
    """Claims on numbers and weights of experts, and on the importance loss if experts are used alike, or are not."""
    only_importance = by_scores(
        router(experts, experts, choices=choices, importance_factor=0.1, load_factor=0.0), world
    )
    only_importance.eval()
    found = only_importance.route(lopsided_scores(world, 64, experts, seed=world.rank), groups=4)
    others = int((found.experts_per_token() != choices).sum())
    off = (dense(found).sum(-1) - 1).abs().max().item()
    even = only_importance.route(balanced_scores(world, experts))
    one_sided = torch.zeros(8, experts, device=world.device, dtype=torch.float64)
    one_sided[:, :choices] = 1.0
    worst = only_importance.route(one_sided)
    section = f"{SHAZEER}, §4"
    highest = costs.importance_loss_at_worst(0.1, experts, choices)
    return [
        Claim("tokens with another number of experts than k", "0", 0, others, "1", f"{SHAZEER}, §2.1"),
        Claim(
            "distance of a token's sum of weights from 1", "10⁻¹²", EXACT, off, "1", f"{SHAZEER}, §2.1", relation="<="
        ),
        Claim("importance loss, experts used alike", "0", 0, even.auxiliary_loss.item(), "1", section, absolute=EXACT),
        Claim(
            "importance loss, k experts used alone and alike",
            "w · (E/k − 1)",
            highest,
            worst.auxiliary_loss.item(),
            "1",
            section,
            tolerance=EXACT,
        ),
    ]


def noise(world: World, router: Any, experts: int, choices: int) -> list[Claim]:
    """Claims that noise changes choices in training only, and that one number depends on its own token and step."""
    noisy = by_scores(router(experts, experts, choices=choices), world)
    x = random_scores(world, 64, experts, seed=world.rank)
    routings = []
    for step in (0, 0, 1):
        noisy.set_position(0, step, first_token=64 * world.rank)
        routings.append(noisy.route(x))
    noisy.eval()
    quiet = [noisy.route(x) for _ in range(2)]
    repeated, changed, still = unlike(*routings[:2]), unlike(*routings[1:]), unlike(*quiet)
    section = f"{SHAZEER}, §2.1"
    return [
        Claim("entries that differ if a step is repeated", "0", 0, repeated, "1", section, "compared"),
        Claim(
            "entries that differ in the next step", "at least 1", 1, changed, "1", section, "compared", ">=", key=True
        ),
        Claim("entries that differ in evaluation", "0", 0, still, "1", section, "compared"),
    ]


def smooth_load(world: World, router: Any, chances: Any, experts: int, choices: int, tokens: int = 1 << 14) -> Claim:
    """The claim that the smooth load is what the number of tokens is on average.

    A chance is the mean of "chosen or not" over the noise of one score, the others given. So the differences of both
    have mean 0 and lie between −1 and 1, and those of an expert are independent from token to token.
    """
    noisy = by_scores(router(experts, experts, choices=choices), world)
    x = random_scores(world, tokens, experts, seed=world.rank)
    noisy.set_position(0, 0, first_token=tokens * world.rank)
    grouped = noisy.split_into_groups(x, 1)
    clean = noisy.scores(grouped)
    scores, deviation = noisy.noisy(clean, grouped, noisy.noise_gate, "scores")
    smooth = chances(clean, scores, deviation, choices).sum((0, 1)) / tokens
    counted = noisy.route(x).load() / tokens
    bound = hoeffding(tokens, 2.0)
    off = (smooth - counted).abs().max().item()
    what = "distance of smooth load from tokens counted, part of all"
    return Claim(what, "2√(ln(2/10⁻⁹)/2T)", bound, off, "1", f"{SHAZEER}, appendix A", "compared", "<=", key=True)


def two_levels(world: World, one: Any, two: Any, experts: int, branches: int, choices: int) -> list[Claim]:
    """Claims that the weights of two levels are the products of the weights of each."""
    generator = torch.Generator().manual_seed(0)
    router = two(experts, experts, branches=branches, choices=choices)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.normal_(generator=generator)
    router = router.to(world.device, torch.float64).eval()
    x = random_scores(world, 32, experts, seed=world.rank)
    found = router.route(x, groups=2)
    upper = level(one, router.branch_gate.weight, x, choices)
    lower = [level(one, weight, x, choices) for weight in router.gate.weight.chunk(branches)]
    product = torch.cat([upper[:, i : i + 1] * each for i, each in enumerate(lower)], dim=1)
    off = (dense(found) - product).abs().max().item()
    others = int((found.experts_per_token() != choices**2).sum())
    section = f"{SHAZEER}, appendix B"
    return [
        Claim("two levels: tokens with another number of experts than k²", "0", 0, others, "1", section),
        Claim("two levels: weights' distance from products", "10⁻¹²", EXACT, off, "1", section, "compared", "<="),
    ]


def level(one: Any, weight: Tensor, x: Tensor, choices: int) -> Tensor:
    """The weights, `[tokens, experts]`, that a router of one level with this W_g gives."""
    router = one(x.shape[1], len(weight), choices=choices).to(x.device, x.dtype).eval()
    with torch.no_grad():
        router.gate.weight.copy_(weight)
    return dense(router.route(x))


def demo(world: World, experts: int = 8, choices: int = 2, branches: int = 2) -> list[Claim]:
    """Routes tokens to their k best experts; the table shows both losses, what the noise does, and two levels.

    Args:
        experts: Number of experts.
        choices: Experts of each token.
        branches: Branches of the two-level router.
    """

    def make(count: int) -> NoisyTopK:
        return NoisyTopK(count, count, choices=min(choices, count))

    world.figure(lambda: lesson.picture_of(lesson.example(NoisyTopK(4, 4), world)))
    claims = [
        *_small_form(world, experts, choices),
        *choices_and_losses(world, NoisyTopK, experts, choices),
        *noise(world, NoisyTopK, experts, choices),
        smooth_load(world, NoisyTopK, chances, experts, choices),
        *lesson.same_when_split(world, make, "derived"),
        lesson.without_a_place(world, make, "derived"),
        *two_levels(world, NoisyTopK, TwoLevel, experts, branches, choices),
    ]
    lesson.timed(world, NoisyTopK(256, experts, choices=choices))
    return claims


def _small_form(world: World, experts: int, choices: int) -> list[Claim]:
    one = torch.eye(experts, dtype=torch.float64, device=world.device)
    even = balanced_scores(world, experts)
    nothing = torch.zeros_like(even)
    importance = {"choices": choices, "importance_factor": 0.1, "load_factor": 0.0}
    *_, loss = noisy_top_k.route(even, one, one, nothing, **importance)
    one_sided = torch.zeros_like(even)
    one_sided[:, :choices] = 1.0
    *_, worst = noisy_top_k.route(one_sided, one, one, nothing, **importance)
    highest, section = costs.importance_loss_at_worst(0.1, experts, choices), f"{SHAZEER}, §4"

    def route(x: Tensor, weight: Tensor, noise_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = normal(full.uniform(x[None], experts, "scores"))[0]
        return noisy_top_k.route(x, weight, noise_weight, noise, choices)

    full = NoisyTopK(experts + 3, experts, choices=choices)
    return [
        Claim(
            "small form: importance loss, experts used alike",
            "0",
            0,
            loss.item(),
            "1",
            section,
            absolute=EXACT,
            key=True,
        ),
        Claim(
            "small form: importance loss, k experts used alone and alike",
            "w · (E/k − 1)",
            highest,
            worst.item(),
            "1",
            section,
            tolerance=EXACT,
            key=True,
        ),
        *lesson.like_full_form(world, full, route),
    ]
