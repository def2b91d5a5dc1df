"""What the demo of `noisy_top_k` shows: both losses, what noise does, and two levels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.mixture_of_experts.common import (
    EXACT,
    PERCENT,
    balanced_scores,
    by_scores,
    dense,
    eight_tokens,
    hoeffding,
    in_both_forms,
    random_scores,
    unlike,
)
from minitrain.mixture_of_experts import noisy_top_k
from minitrain.mixture_of_experts.full.noisy_top_k import NoisyTopK, TwoLevel, chances
from minitrain.models.counter_rng import normal

SHAZEER = "Shazeer et al. 2017"


def losses(world: World, full: Any, small: Any, experts: int, choices: int) -> list[Claim]:
    """Claims on the importance loss if experts are used alike, or are not, and on both losses of eight tokens.

    The eight tokens are routed without noise. Then the smooth load of the small form, too, is a number of tokens.
    """
    one_sided = torch.zeros(2 * experts, experts, device=world.device, dtype=torch.float64)
    one_sided[:, :choices] = 1.0

    def found(x: Tensor, k: int, importance: float, load: float) -> tuple[float, float]:
        columns, factors = x.shape[1], {"choices": k, "importance_factor": importance, "load_factor": load}
        one, nothing = torch.eye(columns, dtype=x.dtype, device=x.device), torch.zeros_like(x)
        *_, loss = small(x, one, torch.full_like(one, 100.0), nothing, **factors)  # all scores of a token are negative
        router = by_scores(full(columns, columns, **factors), world).eval()
        return loss.item(), router.route(x).auxiliary_loss.item()

    best = [sorted(range(4), key=lambda expert: -row[expert])[:2] for row in PERCENT]
    rows = zip(PERCENT, best, strict=True)
    weights = [{expert: row[expert] / sum(row[other] for other in two) for expert in two} for row, two in rows]
    importance = [sum(each.get(expert, 0.0) for each in weights) for expert in range(4)]
    load = [sum(expert in two for two in best) for expert in range(4)]
    even, tokens, section = balanced_scores(world, experts), eight_tokens(world), f"{SHAZEER}, §4"
    highest = costs.importance_loss_at_worst(0.3, experts, choices)
    by_importance, by_load = 0.3 * costs.squared_variation(importance), 0.2 * costs.squared_variation(load)
    worst = "importance loss, k experts used alone and alike"
    eight = "of the eight tokens of notebook 12a"
    return [
        in_both_forms(
            "importance loss, experts used alike", "w · CV² = 0", 0, found(even, choices, 0.3, 0.0), section, key=True
        ),
        in_both_forms(worst, "w · (E/k − 1)", highest, found(one_sided - 2, choices, 0.3, 0.0), section, key=True),
        in_both_forms(f"importance loss {eight}", "w · CV²", by_importance, found(tokens, 2, 0.3, 0.0), section),
        in_both_forms(f"load loss {eight}", "w · CV²", by_load, found(tokens, 2, 0.0, 0.2), section),
    ]


def chosen(world: World, one: Any, two: Any, experts: int, branches: int, choices: int) -> list[Claim]:
    """Claims on the number and the weights of a token's experts, on one level and on two, and on the losses of two.

    On two levels a weight is the product of the weights of each. Without noise an expert's load is a number of tokens.
    """
    x = random_scores(world, 32, experts, seed=world.rank)
    flat = by_scores(one(experts, experts, choices=choices), world).eval().route(x, groups=2)
    generator = torch.Generator().manual_seed(0)
    many = branches * (choices + 2)  # so that a token leaves out experts of a branch, and a branch where there are more
    router = two(experts, many, branches=branches, choices=choices, importance_factor=0.3, load_factor=0.2)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.normal_(generator=generator)
    router = router.to(world.device, torch.float64).eval()
    found = router.route(x)
    upper = level(one, router.branch_gate.weight, x, choices)
    lower = [level(one, weight, x, choices) for weight in router.gate.weight.chunk(branches)]
    product = torch.cat([upper[:, i : i + 1] * each for i, each in enumerate(lower)], dim=1)
    others = {
        name: Claim("", "k, or k² of two levels: 0", 0, int((routing.experts_per_token() != k).sum()), "1", section)
        for name, routing, k, section in (
            ("one level", flat, choices, f"{SHAZEER}, §2.1"),
            ("two levels", found, choices**2, f"{SHAZEER}, appendix B"),
        )
    }

    def within(measured: float, section: str) -> Claim:
        formula = "Σ = 1; products of the levels'"
        return Claim("", formula, EXACT, measured, "1", f"{SHAZEER}, {section}", "compared", "<=")

    weights = {
        "one level: distance of a token's sum from 1": within((dense(flat).sum(-1) - 1).abs().max().item(), "§2.1"),
        "two levels: distance from products": within((dense(found) - product).abs().max().item(), "appendix B"),
    }
    importance, load = product.sum(0).tolist(), (product > 0).sum(0).tolist()
    loss = 0.3 * costs.squared_variation(importance) + 0.2 * costs.squared_variation(load)
    what, measured = "two levels: both losses, without noise", found.auxiliary_loss.item()
    section = f"{SHAZEER}, appendix B"
    return [
        fold("tokens with another number of experts than they should have", others),
        fold("distance of weights from what they should be", weights),
        Claim(what, "w · CV² + w′ · CV²", loss, measured, "1", section, "compared", tolerance=EXACT),
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
    same = {
        "a step repeated": Claim("", "0", 0, repeated, "1", section),
        "evaluation": Claim("", "0", 0, still, "1", section),
    }
    return [
        fold("entries that differ if a step is repeated, or in evaluation", same),
        Claim("entries that differ in the next step", "above 0", 1, changed, "1", section, "compared", ">=", key=True),
    ]


def smooth_load(
    world: World, router: Any, chances: Any, experts: int, choices: int, tokens: int = 1 << 15
) -> list[Claim]:
    """Claims that the smooth load is what the number of tokens is on average, and on how large the noise is at first.

    A chance is the mean of "chosen or not" over the noise of one score, the others given. So given these the
    difference of both has mean 0 and one of two values that lie 1 apart, and those of an expert are independent from
    token to token: Hoeffding's bound holds for a width of 1.
    """
    noisy = by_scores(router(experts, experts, choices=choices), world)
    x = random_scores(world, tokens, experts, seed=world.rank)
    noisy.set_position(0, 0, first_token=tokens * world.rank)
    grouped = noisy.split_into_groups(x, 1)
    clean = noisy.scores(grouped)
    scores, deviation = noisy.noisy(clean, grouped, noisy.noise_gate, "scores")
    smooth = chances(clean, scores, deviation, choices).sum((0, 1)) / tokens
    counted = noisy.route(x).load() / tokens
    off = (smooth - counted).abs().max().item()
    formula, section = "√(ln(2/10⁻⁹)/2T)", f"{SHAZEER}, appendix A"
    what = "distance of smooth load from tokens counted, part of all"
    spread = (scores - clean).square().mean().sqrt().item()
    # Of N normal numbers the root of the mean square is off by a part of 1/√(2N): here six of these are below 1 %.
    return [
        Claim(what, formula, hoeffding(tokens), off, "1", section, "compared", "<=", key=True),
        Claim("deviation of the noise as training begins", "ln 2", math.log(2), spread, "1", section, tolerance=0.01),
    ]


def level(one: Any, weight: Tensor, x: Tensor, choices: int) -> Tensor:
    """The weights, `[tokens, experts]`, that a router of one level with this W_g gives."""
    router = one(x.shape[1], len(weight), choices=choices).to(x.device, x.dtype).eval()
    with torch.no_grad():
        router.gate.weight.copy_(weight)
    return dense(router.route(x))


def demo(world: World, experts: int = 8, choices: int = 2, branches: int = 3) -> list[Claim]:
    """Routes tokens to their k best experts; the table shows both losses, what the noise does, and two levels.

    Args:
        experts: Number of experts.
        choices: Experts of each token.
        branches: Branches of the two-level router, no fewer than choices.
    """

    def make(count: int) -> NoisyTopK:
        return NoisyTopK(count, count, choices=min(choices, count))

    world.figure(lambda: lesson.picture_of(lesson.example(NoisyTopK(4, 4), world)))
    claims = [
        *_like_full_form(world, experts, choices),
        *losses(world, NoisyTopK, noisy_top_k.route, experts, choices),
        *noise(world, NoisyTopK, experts, choices),
        *smooth_load(world, NoisyTopK, chances, experts, choices),
        lesson.same_when_split(world, make),
        lesson.without_a_place(world, make),
        *chosen(world, NoisyTopK, TwoLevel, experts, branches, choices),
    ]
    lesson.timed(world, NoisyTopK(256, experts, choices=choices))
    return claims


def _like_full_form(world: World, experts: int, choices: int) -> list[Claim]:
    full = NoisyTopK(experts + 3, experts, choices=choices)

    def route(x: Tensor, weight: Tensor, noise_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = normal(full.uniform(x[None], experts, "scores"))[0]
        return noisy_top_k.route(x, weight, noise_weight, noise, choices)

    return lesson.like_full_form(world, full, route)
