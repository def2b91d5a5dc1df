"""What the routers' lessons share: tokens whose scores are given, and the claims that several routers make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.rows import Rows
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing, position_in_expert

Route = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""The small form of a router."""

PERCENT = (  # how likely each of eight tokens finds each of four experts: the example of notebook 12a
    (56, 24, 13, 7),
    (15, 58, 22, 5),
    (48, 14, 6, 32),
    (13, 16, 64, 7),
    (64, 16, 11, 9),
    (28, 52, 13, 7),
    (60, 11, 20, 9),
    (36, 9, 11, 44),
)
EXACT = 1e-12  # for sums of a few hundred numbers in float64, each rounded to one part in 10¹⁶


def one(world: World, experts: int) -> Tensor:
    """W = 1, so that a token of as many numbers as there are experts is its own scores."""
    return torch.eye(experts, dtype=torch.float64, device=world.device)


def eight_tokens(world: World) -> Tensor:
    """Their scores, such that a softmax gives the probabilities of `PERCENT`."""
    return (torch.tensor(PERCENT, dtype=torch.float64) / 100).log().to(world.device)


def parts_and_means() -> tuple[list[float], list[float]]:
    """f and P of the eight tokens: the part that likes each expert best, and the mean of each column."""
    best = [row.index(max(row)) for row in PERCENT]
    means = [sum(column) / 100 / len(PERCENT) for column in zip(*PERCENT, strict=True)]
    return [best.count(expert) / len(PERCENT) for expert in range(4)], means


def random_scores(world: World, tokens: int, experts: int) -> Tensor:
    """Scores of this rank's tokens, normally distributed: every expert is as likely to be a token's best."""
    generator = torch.Generator().manual_seed(world.rank)
    return torch.randn(tokens, experts, generator=generator, dtype=torch.float64).to(world.device)


def balanced_scores(world: World, experts: int) -> Tensor:
    """Tokens of which the first prefers expert 0, then 1, and so on, in the same way: each rank in a way of its own."""
    falling = torch.arange(experts, 0, -1, dtype=torch.float64) * (world.rank + 1) / experts
    return torch.stack([falling.roll(token) for token in range(2 * experts)]).to(world.device)


def route_scores(router: Router, scores: Tensor, groups: int = 1) -> Routing:
    """What a full form makes of tokens that are their own scores."""
    nn.init.eye_(router.gate.weight)
    router.set_position(seed=0, step=0)
    return router.to(scores).route(scores, groups=groups)


def as_routing(answer: tuple[Tensor, Tensor, Tensor], made: Tensor, experts: int, capacity: int | None) -> Routing:
    """The answer of a small form, with slots and dropped tokens, for pictures.

    `made`: the choices before some were dropped, −1 for one that is not made.
    """
    chosen, gates, loss = answer
    kept = chosen >= 0
    place = position_in_expert(chosen.clamp_min(0)[None], kept[None], experts)[0]
    token = kept.nonzero()[:, 0]
    dropped = torch.stack([(made != chosen).nonzero()[:, 0], made[made != chosen]], 1)
    return Routing(token, chosen[kept], gates[kept], place[kept], dropped, loss, len(chosen), experts, capacity, 1)


def most_of_an_expert(rows: Rows, world: World, route: Route, choices: int, source: str) -> None:
    """Claim that an expert takes as many tokens as it has slots, where all tokens want it."""
    formula = "⌊c · T/E⌋" if choices == 1 else f"⌊c · {choices}T/E⌋"
    # In the second case c · kT/E is whole, but a little less in floating point.
    for tokens, experts, factor in ((63, 8, 1.25), (100, 5, 1.15)):
        falling = torch.arange(experts, 0, -1.0, dtype=torch.float64, device=world.device).repeat(tokens, 1)
        chosen, _, _ = route(falling, one(world, experts), factor)
        places = costs.capacity(tokens, experts, factor, choices)
        what = "tokens of an expert that all tokens want"
        rows.add(what, formula, places, int((chosen == 0).sum()), "1", source, case=f"c = {factor:g}")


def dropped(
    rows: Rows, world: World, route: Route, factors: Sequence[float], tokens: int, choices: int, experts: int = 4
) -> None:
    """Claim what is dropped on average if choices are even: no luck, since every way to choose is routed once.

    A token's score is the same for all experts that it chooses, and too small for the others to count.
    """
    sets = list(combinations(range(experts), choices))
    scores = torch.full((len(sets), experts), -50.0, dtype=torch.float64)
    for row, chosen in zip(scores, sets, strict=True):
        row[list(chosen)] = 0.0
    ways = torch.tensor(list(product(range(len(sets)), repeat=tokens)))
    x = scores[ways].to(world.device)  # [ways, tokens, experts]
    what = f"part dropped of all choices, over all {len(ways):,} ways in which {tokens} tokens can choose"
    formula = "E/T · Σ (x − C) · P(x), x > C" if choices == 1 else f"E/({choices}T) · Σ (x − C) · P(x), x > C"
    for factor in factors:
        chosen = torch.vmap(lambda way, c=factor: route(way, one(world, experts), c)[0])(x)
        places = costs.capacity(tokens, experts, factor, choices)
        expected, lost = costs.dropped_fraction(tokens, experts, places, choices), (chosen < 0).double().mean().item()
        source, case = "derived: P binomial, T trials of k/E", f"c = {factor:g}"
        rows.add(what, formula, expected, lost, "1", source, case=case, how="compared", tolerance=EXACT)
