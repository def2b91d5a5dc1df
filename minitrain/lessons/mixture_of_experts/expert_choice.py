"""What the demo of `expert_choice` shows: full experts, the cap, and why it cannot generate token by token."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.mixture_of_experts.common import by_scores, entries, fullest, random_scores
from minitrain.mixture_of_experts import expert_choice
from minitrain.mixture_of_experts.full.expert_choice import ExpertChoice, capped, violations
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.switch import Switch

ZHOU = "Zhou et al. 2022"
CONVERGED = 1e-3


def full(world: World, router: Any, experts: int, tokens: int, factor: float) -> list[Claim]:
    """Claims that every expert has k tokens of every group."""
    choice = by_scores(router(experts, experts, capacity_factor=factor), world)
    found = choice.route(random_scores(world, 4 * tokens, experts, seed=world.rank), groups=4)
    k = costs.capacity(tokens, experts, factor)
    fewest, most = fullest(found)
    mean = found.experts_per_token().double().mean().item()
    source = f"{ZHOU}, §3.2"
    return [
        Claim("fewest tokens of an expert in a group", "k = ⌊n · c/e⌋", k, fewest, "1", source),
        Claim("most tokens of an expert in a group", "k = ⌊n · c/e⌋", k, most, "1", source),
        Claim("experts of a token, on average", "e · k/n", experts * k / tokens, mean, "1", source, tolerance=1e-12),
    ]


def cap(world: World, capped: Any, violations: Any, experts: int, tokens: int, factor: float, most: int) -> list[Claim]:
    """Claims that A keeps its constraints, and how many tokens have more than b experts all the same.

    An entry of A may be a fraction. So each column may sum to b at most, and yet more than b experts have this token
    among their k largest entries: the more, the larger λ is. How many is counted and not claimed. What the router makes
    of it keeps the cap: `cap_kept`.
    """
    k, source = costs.capacity(tokens, experts, factor), f"{ZHOU}, §3.3"
    s = (2 * random_scores(world, tokens, experts, seed=100 + world.rank)).softmax(-1).T[None]
    claims = []
    world.cost("tokens with more than b experts, no cap", above(s, k, most), "tokens")
    for entropy in (1.0, 0.1, 0.01):
        a, rounds = capped(s, k, most, entropy, iterations=20_000, tolerance=CONVERGED)
        what = f"A at λ = {entropy:g}: constraints' largest violation"
        claims.append(Claim(what, "converged", CONVERGED, max(violations(a, k, most)), "1", source, relation="<="))
        world.cost(f"tokens with more than b experts, λ = {entropy:g}", above(a, k, most), "tokens")
        world.cost(f"until A at λ = {entropy:g} is off by less than {CONVERGED:g}", rounds, "rounds")
    return claims


def cap_kept(world: World, router: Any, experts: int, tokens: int, factor: float, most: int) -> Claim:
    """The claim that no token has more than b experts, though A has not converged."""
    choice = by_scores(router(experts, experts, capacity_factor=factor, most=most), world)
    found = choice.route(2 * random_scores(world, 4 * tokens, experts, seed=100 + world.rank), groups=4)
    what = f"most experts of a token with a cap of b, λ = {choice.entropy:g}, {choice.iterations} rounds"
    return Claim(what, "b", most, int(found.experts_per_token().max()), "1", f"{ZHOU}, §3.3", relation="<=", key=True)


def above(preference: torch.Tensor, k: int, most: int) -> int:
    """Tokens that more than `most` experts have among their k highest scores."""
    token = preference.topk(k, -1).indices.flatten()
    return int((torch.bincount(token) > most).sum())


def later_tokens(world: World, router: Any, token_choice: Any, experts: int, tokens: int) -> list[Claim]:
    """Claims that another last token changes what earlier ones are sent to, and not if tokens choose."""
    x = random_scores(world, tokens, experts, seed=world.rank)
    x[-1] = 0.0
    other = x.clone()
    other[-1, 0] = 20.0  # expert 0's highest score now, in place of one that it had
    changed = [
        earlier_changes(by_scores(each, world), x, other)
        for each in (router(experts, experts), token_choice(experts, experts).eval())
    ]
    return [
        Claim(
            "experts lost or won by earlier tokens, with another last one",
            "at least 1",
            1,
            changed[0],
            "1",
            f"{ZHOU}, §5",
            "compared",
            ">=",
            key=True,
        ),
        Claim("the same if tokens choose (Switch, evaluation)", "0", 0, changed[1], "1", "derived", "compared"),
    ]


def earlier_changes(router: Router, x: torch.Tensor, other: torch.Tensor) -> int:
    """How many pairs of an earlier token and an expert only one of two sequences has; the last token is left out."""
    pairs = [{entry[:2] for entry in entries(router.route(each)) if entry[0] < len(x) - 1} for each in (x, other)]
    return len(pairs[0] ^ pairs[1])


def demo(world: World, experts: int = 8, tokens: int = 32, capacity_factor: float = 2.0, most: int = 2) -> list[Claim]:
    """Lets experts choose tokens; the table shows full experts, the cap, and what a later token does to earlier ones.

    Args:
        experts: Number of experts.
        tokens: Tokens of a group.
        capacity_factor: Experts of a token on average.
        most: The cap on experts of a token.
    """

    def make(count: int) -> ExpertChoice:
        return ExpertChoice(count, count, capacity_factor=capacity_factor)

    world.figure(lambda: lesson.picture_of(lesson.example(ExpertChoice(4, 4, capacity_factor=1.0), world)))
    claims = [
        *_small_form(world, experts, tokens, capacity_factor),
        *full(world, ExpertChoice, experts, tokens, capacity_factor),
        *cap(world, capped, violations, experts, tokens, capacity_factor, most),
        cap_kept(world, ExpertChoice, experts, tokens, capacity_factor, most),
        *later_tokens(world, ExpertChoice, Switch, experts, tokens),
        *lesson.same_when_split(world, make, "derived"),
    ]
    lesson.timed(world, ExpertChoice(256, experts))
    return claims


def _small_form(world: World, experts: int, tokens: int, factor: float) -> list[Claim]:
    one = torch.eye(experts, dtype=torch.float64, device=world.device)
    x = lesson.lopsided_scores(world, tokens, experts, seed=world.rank)
    chosen, _, _ = expert_choice.route(x, one, factor)
    load = (chosen >= 0).sum(0)
    k, source = costs.capacity(tokens, experts, factor), f"{ZHOU}, §3.2"
    route = partial(expert_choice.route, capacity_factor=factor)
    fewest, most = int(load.min()), int(load.max())
    return [
        Claim("small form: fewest tokens of an expert", "k = ⌊n · c/e⌋", k, fewest, "1", source, key=True),
        Claim("small form: most tokens of an expert", "k = ⌊n · c/e⌋", k, most, "1", source, key=True),
        *lesson.like_full_form(world, ExpertChoice(experts + 3, experts, capacity_factor=factor), route),
    ]
