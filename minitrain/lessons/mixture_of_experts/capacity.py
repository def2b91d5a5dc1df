"""Shared by the demos of `switch` and `gshard`: losses, places, and tokens that find none.

The average number of dropped tokens with even choices does not depend on luck here: the demos route every way in which
a few tokens can choose, each once, and all ways are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.mixture_of_experts.common import (
    EXACT,
    PERCENT,
    balanced_scores,
    by_scores,
    eight_tokens,
    entries,
    fullest,
    hoeffding,
    in_both_forms,
    lopsided_scores,
    parts_and_means,
    random_scores,
    shared_places,
)
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing

FEDUS, LEPIKHIN = "Fedus et al. 2021", "Lepikhin et al. 2020"
SIZE, GROUPS = 63, 4  # tokens of a group, in no usual number of experts' a whole number; groups where few will do
Small = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""The small form of a router."""


def one(world: World, experts: int) -> Tensor:
    """W = 1, so that a token of as many numbers as there are experts is its own scores."""
    return torch.eye(experts, dtype=torch.float64, device=world.device)


def most_of_an_expert(world: World, full: Any, small: Small, experts: int, factor: float, choices: int) -> Claim:
    """The claim that an expert takes as many tokens as it has places, where all tokens want it.

    The second case is one in which c · kT/E is whole, but a little less in floating point.
    """
    formula = "⌊c · T/E⌋" if choices == 1 else f"⌊c · {choices}T/E⌋"
    source = f"{FEDUS}, §2.2, equation 3" if choices == 1 else f"{LEPIKHIN}, §2.2 and algorithm 1"
    cases = {}
    for size, count, each in ((SIZE, experts, factor), (100, 5, 1.15)):
        falling = torch.arange(count, 0, -1.0, dtype=torch.float64).to(world.device)
        x = falling.repeat(size, 1)
        chosen, _, _ = small(x, one(world, count), capacity_factor=each)
        router = by_scores(full(count, count, capacity_factor=each), world)
        router.set_position(seed=0, step=0)
        places = min(size, costs.capacity(size, count, each, choices))
        for form, most in (("small", int((chosen == 0).sum())), ("full", fullest(router.route(x))[1])):
            case = f"{form} form, c = {each:g}, T = {size}, E = {count}"
            cases[case] = Claim("", formula, places, most, "1", source)
    return fold("tokens of an expert that all tokens want, both forms", cases, key=True)


def shared(routing: Routing) -> Claim:
    """The claim that no place is given twice."""
    return Claim("entries that share a place with another", "0", 0, shared_places(routing), "1", "derived")


def switch_losses(world: World, full: Any, small: Small, experts: int, factor: float) -> list[Claim]:
    """Claims on the loss if tokens are spread evenly, if all go to one expert with certainty, and on one between."""
    one_sided = torch.zeros(8, experts, device=world.device, dtype=torch.float64)
    one_sided[:, 0] = 1e3
    parts, means = parts_and_means()
    chances = [percent / 100 for percent in PERCENT[0]]

    def losses(x: Tensor) -> tuple[float, float]:
        router = by_scores(full(x.shape[1], x.shape[1], loss_factor=factor, capacity_factor=None), world)
        *_, loss = small(x, one(world, x.shape[1]), loss_factor=factor)
        return loss.item(), router.route(x).auxiliary_loss.item()

    def slopes(x: Tensor) -> tuple[float, ...]:
        found = []
        for form in ("small", "full"):
            leaf = x.clone().requires_grad_()
            if form == "small":
                *_, loss = small(leaf, one(world, 4), loss_factor=factor)
            else:
                loss = by_scores(full(4, 4, loss_factor=factor), world).route(leaf).auxiliary_loss
            (
                loss + 0 * leaf.sum()
            ).backward()  # a loss without a gradient shall make the claim false, and raise nothing
            assert leaf.grad is not None
            found.append(leaf.grad[0, 0].item())
        return tuple(found)

    tokens, equation = eight_tokens(world), f"{FEDUS}, §2.2, equation 4"
    balance, worst = costs.switch_loss_at_balance(factor), costs.switch_loss_at_worst(factor, experts)
    between, slope = (
        costs.switch_loss(factor, parts, means),
        costs.switch_loss_gradient(factor, parts, chances, 0, len(PERCENT)),
    )
    even = balanced_scores(world, experts)
    return [
        in_both_forms("loss at perfect balance", "α", balance, losses(even), equation, key=True),
        in_both_forms("loss, all tokens to one expert", "α · E", worst, losses(one_sided), equation),
        in_both_forms("loss of the eight tokens of notebook 12a", "α · E Σ fᵢPᵢ", between, losses(tokens), equation),
        in_both_forms(
            "its gradient, by token 0's score for expert 0", "αE/T · pᵢ(fᵢ − Σ fⱼpⱼ)", slope, slopes(tokens), "derived"
        ),
    ]


def switch_capacity(world: World, full: Any, small: Small, experts: int, factor: float) -> list[Claim]:
    """Claims on places of experts, and on how many tokens find none if choices are even."""
    switch = by_scores(full(experts, experts, capacity_factor=factor), world)
    x = lopsided_scores(world, GROUPS * SIZE, experts, seed=world.rank)
    found = switch.route(x, groups=GROUPS)
    kept = len(switch.eval().route(x, groups=GROUPS).token)
    return [
        most_of_an_expert(world, full, small, experts, factor, choices=1),
        shared(found),
        Claim("tokens that go to an expert in evaluation", "T", len(x), kept, "1", "derived"),
        dropped(world, lambda each: full(4, 4, capacity_factor=each), {1.0, factor}, tokens=7, choices=1),
    ]


def dropped(
    world: World, make: Callable[[float], Router], factors: set[float], tokens: int, choices: int, experts: int = 4
) -> Claim:
    """The claim on what is dropped on average if choices are even, from all ways in which tokens can choose.

    A token's score is the same for all experts that it chooses, and too small for the others to count.
    """
    sets = list(combinations(range(experts), choices))
    scores = torch.full((len(sets), experts), -50.0, dtype=torch.float64)
    for row, chosen in zip(scores, sets, strict=True):
        row[list(chosen)] = 0.0
    ways = torch.tensor(list(product(range(len(sets)), repeat=tokens))).flatten()
    x, cases = scores[ways].to(world.device), {}
    formula = "E/T · Σ (x − C) · P(x), x > C" if choices == 1 else f"E/({choices}T) · Σ (x − C) · P(x), x > C"
    for factor in sorted(factors):
        if factor * choices * tokens >= experts:  # otherwise there is not one place
            places = costs.capacity(tokens, experts, factor, choices)
            router = by_scores(make(factor), world)
            router.set_position(seed=0, step=0)
            lost = router.route(x, groups=len(x) // tokens).dropped_fraction()
            expected = costs.dropped_fraction(tokens, experts, places, choices)
            source = "derived: P binomial, T trials of k/E"
            cases[f"c = {factor:g}"] = Claim("", formula, expected, lost, "1", source, "compared", tolerance=EXACT)
    what = f"part dropped of all choices, over all {len(sets) ** tokens:,} ways in which {tokens} tokens can choose"
    return fold(what, cases, key=True)


def jitter(world: World, router: Any, share: float = 0.1, tokens: int = 1 << 14) -> Claim:
    """The claim that in training each number is multiplied by one between 1 − jitter and 1 + jitter, all as likely.

    A token has the scores 1 and 0. So of its probability p of expert 0, ln p/(1 − p) is what its 1 was multiplied by.
    """
    x = torch.eye(2, dtype=torch.float64)[0].repeat(tokens, 1).to(world.device)
    shaken = by_scores(router(2, 2, capacity_factor=None, jitter=share), world)
    shaken.set_position(seed=0, step=0)
    factor = shaken.route(x).weight.logit()
    found = {"mean": 1.0, "smallest": 1 - share, "largest": 1 + share}
    measured = factor.mean().item(), factor.min().item(), factor.max().item()
    # The mean has a deviation of j/√3T, here 0.05 %; the ends are nearer.
    cases = {
        which: Claim("", "1, 1 − j, 1 + j", expected, value, "1", "derived", "compared", tolerance=0.003)
        for (which, expected), value in zip(found.items(), measured, strict=True)
    }
    return fold("what jitter multiplies by: mean, smallest, largest", cases)


def precision(world: World, router: Any, experts: int, hidden: int = 64, tokens: int = 8192) -> list[Claim]:
    """Claims that a bfloat16 model's tokens go where exact scores say, and would not with a bfloat16 router."""
    generator = torch.Generator().manual_seed(world.rank)
    switch = router(hidden, experts)
    switch.reset_parameters(generator)
    largest = switch.gate.weight.abs().max().item()
    switch = switch.to(world.device, torch.bfloat16).eval()
    x = torch.randn(tokens, hidden, generator=generator).to(world.device, torch.bfloat16)
    exact = F.linear(x.double(), switch.gate.weight.double()).argmax(-1)
    careful, careless = switch.route(x).expert, F.linear(x, switch.gate.weight).argmax(-1)
    section, how = f"{FEDUS}, §2.4", "compared"
    wrong, wrong_here = int((careless != exact).sum()), int((careful != exact).sum())
    what, bound = "largest of the initial weights", 2 * math.sqrt(0.1 / hidden)
    return [
        # Of some hundred weights one is near the end of the truncated normal distribution.
        Claim(what, "2√(0.1/h)", bound, largest, "1", section, how, tolerance=0.1),
        Claim(
            "tokens of a bfloat16 model sent to a wrong expert",
            "0, by xW in float64",
            0,
            wrong_here,
            "1",
            section,
            how,
            key=True,
        ),
        Claim("the same, if the router were bfloat16 too", "some", 1, wrong, "1", section, how, ">="),
    ]


def gshard_losses(world: World, full: Any, small: Small, experts: int) -> list[Claim]:
    """Claims on the loss if tokens are spread evenly, and on one that is not even."""

    def losses(x: Tensor) -> tuple[float, float]:
        router = by_scores(full(x.shape[1], x.shape[1], loss_factor=1.5, capacity_factor=None), world).eval()
        *_, loss = small(x, one(world, x.shape[1]), loss_factor=1.5)
        return loss.item(), router.route(x).auxiliary_loss.item()

    balance, between = costs.gshard_loss_at_balance(1.5, experts), costs.gshard_loss(1.5, *parts_and_means())
    even, tokens, line = balanced_scores(world, experts), eight_tokens(world), f"{LEPIKHIN}, algorithm 1, line 13"
    return [
        in_both_forms("loss at perfect balance", "α/E²", balance, losses(even), line, key=True),
        in_both_forms("loss of the eight tokens of notebook 12a", "α/E · Σ fᵢPᵢ", between, losses(tokens), line),
    ]


def gshard_places(world: World, full: Any, small: Small, experts: int, factor: float) -> list[Claim]:
    """Claims on places: their number, that none is given twice, and that first choices come before second ones."""
    gshard = by_scores(full(experts, experts, capacity_factor=factor), world)
    x = lopsided_scores(world, GROUPS * SIZE, experts, seed=world.rank)
    found = routed(gshard, x, world)
    first = x.argmax(-1).tolist()
    turned_away = {(token // SIZE, expert) for token, expert in found.dropped.tolist() if first[token] == expert}
    before = [t for t, e, _ in entries(found) if first[t] != e and (t // SIZE, e) in turned_away]
    source = f"{LEPIKHIN}, algorithm 1"
    return [
        most_of_an_expert(world, full, small, experts, factor, choices=2),
        fold(
            "places given twice, or to a second choice where a first one found none",
            {
                "shared places": shared(found),
                "second choices before first ones": Claim("", "0", 0, len(before), "1", source),
            },
            key=True,
        ),
        dropped(world, lambda each: full(4, 4, capacity_factor=each), {1.0, factor}, tokens=5, choices=2),
    ]


def gshard_second(world: World, router: Any, experts: int, tokens: int = 1 << 14) -> Claim:
    """The claim that second choices are made in proportion to their weight."""
    gshard = by_scores(router(experts, experts, capacity_factor=None), world)
    x = random_scores(world, tokens, experts, seed=world.rank)
    found = routed(gshard, x, world, groups=1)
    two_best = x.softmax(-1).topk(2, -1).values
    expected = 2 * (two_best[:, 1] / two_best.sum(-1)).mean().item()
    taken = (len(found.token) - tokens) / tokens
    return Claim(
        "part of tokens whose second choice is made",
        "mean of 2g₂/(g₁ + g₂)",
        expected,
        taken,
        "1",
        f"{LEPIKHIN}, §2.2",
        "compared",
        absolute=hoeffding(tokens),
        key=True,
    )


def routed(router: Router, x: torch.Tensor, world: World, groups: int = GROUPS) -> Routing:
    """The routing of x, whose tokens no other rank has, in the first step."""
    router.set_position(seed=0, step=0, first_token=world.rank * len(x))
    return router.route(x, groups=groups)
