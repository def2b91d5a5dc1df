"""What the demos of `switch` and `gshard` show: losses at balance, places, and tokens that find none."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.mixture_of_experts.common import (
    EXACT,
    balanced_scores,
    by_scores,
    entries,
    fullest,
    hoeffding,
    lopsided_scores,
    random_scores,
    shared_places,
)
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing

FEDUS, LEPIKHIN = "Fedus et al. 2021", "Lepikhin et al. 2020"
SIZE, GROUPS = 64, 4  # tokens of a group, and groups where few will do


def places_kept(routing: Routing, places: int, formula: str, source: str) -> list[Claim]:
    """Claims that no expert has more tokens of a group than places, and no place more than one."""
    shared = shared_places(routing)
    return [
        Claim("most tokens of an expert in a group", formula, places, fullest(routing)[1], "1", source, relation="<="),
        Claim("entries that share a place with another", "0", 0, shared, "1", source),
    ]


def switch_losses(world: World, router: Any, experts: int, factor: float) -> list[Claim]:
    """Claims on the loss if tokens are spread evenly, and if all go to one expert with certainty."""
    switch = by_scores(router(experts, experts, loss_factor=factor, capacity_factor=None), world)
    even = switch.route(balanced_scores(world, experts)).auxiliary_loss.item()
    one_sided = torch.zeros(8, experts, device=world.device, dtype=torch.float64)
    one_sided[:, 0] = 1e3
    worst = switch.route(one_sided).auxiliary_loss.item()
    balance, highest = costs.switch_loss_at_balance(factor), costs.switch_loss_at_worst(factor, experts)
    equation = f"{FEDUS}, §2.2, equation 4"
    return [
        Claim("loss at perfect balance", "α", balance, even, "1", equation, tolerance=EXACT),
        Claim("loss, all tokens to one expert", "α · E", highest, worst, "1", equation, tolerance=EXACT),
    ]


def switch_capacity(world: World, router: Any, experts: int, factor: float) -> list[Claim]:
    """Claims on places of experts, and on how many tokens find none if choices are even."""
    switch = by_scores(router(experts, experts, capacity_factor=factor), world)
    x = lopsided_scores(world, GROUPS * SIZE, experts, seed=world.rank)
    section = f"{FEDUS}, §2.2, equation 3"
    places = costs.capacity(SIZE, experts, factor)
    claims = places_kept(switch.route(x, groups=GROUPS), places, "⌊c · T/E⌋", section)
    switch.eval()
    claims.append(Claim("tokens dropped in evaluation", "0", 0, len(switch.route(x, groups=GROUPS).dropped), "1"))
    many = 512
    even = random_scores(world, many * SIZE, experts, seed=world.rank)
    for each in sorted({1.0, factor}):
        switch = by_scores(router(experts, experts, capacity_factor=each), world)
        expected = costs.dropped_fraction(SIZE, experts, costs.capacity(SIZE, experts, each))
        dropped = switch.route(even, groups=many).dropped_fraction()
        claims.append(
            Claim(
                f"part of tokens dropped, choices even, capacity factor {each:g}",
                "E/T · Σ (x − C) · P(x), x > C",
                expected,
                dropped,
                "1",
                "derived: P binomial, T trials of 1/E",
                absolute=hoeffding(many * SIZE),  # another choice of one token changes what is dropped by at most 1
                key=each == factor,
            )
        )
    return claims


def precision(world: World, router: Any, experts: int, hidden: int = 64, tokens: int = 8192) -> list[Claim]:
    """Claims that a bfloat16 model's tokens go where exact scores say, and would not with a bfloat16 router."""
    generator = torch.Generator().manual_seed(world.rank)
    switch = router(hidden, experts)
    switch.reset_parameters(generator)
    switch = switch.to(world.device, torch.bfloat16).eval()
    x = torch.randn(tokens, hidden, generator=generator).to(world.device, torch.bfloat16)
    exact = F.linear(x.double(), switch.gate.weight.double()).argmax(-1)
    careful, careless = switch.route(x).expert, F.linear(x, switch.gate.weight).argmax(-1)
    section, how = f"{FEDUS}, §2.4", "compared"
    wrong, wrong_here = int((careless != exact).sum()), int((careful != exact).sum())
    return [
        Claim("tokens of a bfloat16 model sent to a wrong expert", "0", 0, wrong_here, "1", section, how, key=True),
        Claim("the same, if the router were bfloat16 too", "some", 1, wrong, "1", section, how, ">="),
    ]


def gshard_loss(world: World, router: Any, experts: int) -> Claim:
    """The claim on the loss if tokens are spread evenly."""
    gshard = by_scores(router(experts, experts, loss_factor=1.0, capacity_factor=None), world).eval()
    even = gshard.route(balanced_scores(world, experts)).auxiliary_loss.item()
    balance, line = costs.gshard_loss_at_balance(1.0, experts), f"{LEPIKHIN}, algorithm 1, line 13"
    return Claim("loss at perfect balance", "α/E²", balance, even, "1", line, tolerance=EXACT)


def gshard_places(world: World, router: Any, experts: int, factor: float) -> list[Claim]:
    """Claims on places: none is given twice, first choices come before second ones, and groups do not meet."""
    gshard = by_scores(router(experts, experts, capacity_factor=factor), world)
    x = lopsided_scores(world, GROUPS * SIZE, experts, seed=world.rank)
    found = routed(gshard, x, world)
    first = x.argmax(-1).tolist()
    size = len(x) // GROUPS
    turned_away = {(token // size, expert) for token, expert in found.dropped.tolist() if first[token] == expert}
    before = [t for t, e, _ in entries(found) if first[t] != e and (t // size, e) in turned_away]
    other = x.clone()
    other[:size] = random_scores(world, size, experts, seed=77)
    beside = {entry for entry in entries(found) if entry[0] >= size}
    changed = beside ^ {entry for entry in entries(routed(gshard, other, world)) if entry[0] >= size}
    places, source = costs.capacity(SIZE, experts, factor, choices=2), f"{LEPIKHIN}, algorithm 1"
    return [
        *places_kept(found, places, "⌊c · 2T/E⌋", source),
        Claim("second choices with a place that a first one lacks", "0", 0, len(before), "1", source, key=True),
        Claim("entries that change with the tokens of another group", "0", 0, len(changed), "1", source, "compared"),
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
