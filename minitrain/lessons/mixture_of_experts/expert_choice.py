"""What the demo of `expert_choice` shows: full experts, the cap, and why it cannot generate token by token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import torch

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.mixture_of_experts.common import by_scores, entries, fullest, random_scores
from minitrain.mixture_of_experts import expert_choice
from minitrain.mixture_of_experts.full.expert_choice import ExpertChoice, capped, uncut, within_cap
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.switch import Switch

ZHOU = "Zhou et al. 2022"
CONVERGED = 1e-3


def full(world: World, router: Any, small: Any, experts: int, tokens: int, factor: float) -> list[Claim]:
    """Claims that every expert has k tokens of every group, in both forms."""
    source = f"{ZHOU}, §3.2"
    cases, mean, k = {}, 0.0, 0
    # In the first case n · c/e is whole, but a little less in floating point.
    for n, e, c in ((100, 5, 1.15), (tokens, experts, factor)):
        found = by_scores(router(e, e, capacity_factor=c), world).route(random_scores(world, 4 * n, e), groups=4)
        one = torch.eye(e, dtype=torch.float64, device=world.device)
        column, _, _ = small(lesson.lopsided_scores(world, n, e, seed=world.rank), one, c)
        counts, k, mean = (
            (column >= 0).sum(0),
            costs.capacity(n, e, c),
            found.experts_per_token().double().mean().item(),
        )
        for form, numbers in (("small", (counts.min(), counts.max())), ("full", fullest(found))):
            for which, number in zip(("fewest", "most"), numbers, strict=True):
                case = f"{which} in the {form} form, n = {n}, e = {e}, c = {c:g}"
                cases[case] = Claim("", "k = ⌊n · c/e⌋", k, int(number), "1", source)
    return [
        fold("tokens of each expert in a group, both forms", cases, key=True),
        Claim("experts of a token, on average", "e · k/n", experts * k / tokens, mean, "1", source, tolerance=1e-12),
    ]


def cap(world: World, capped: Any, uncut: Any, experts: int, tokens: int, factor: float, most: int) -> list[Claim]:
    """Claims that A keeps its constraints and is the best that does, and how many tokens exceed the cap all the same.

    An entry of A may be a fraction. So each column may sum to b at most, and yet more than b experts have this token
    among their k largest entries: the more, the larger λ is. How many is counted and not claimed. What the router makes
    of it keeps the cap: `cap_kept`.
    """
    k, source = costs.capacity(tokens, experts, factor), f"{ZHOU}, §3.3"
    s = (2 * random_scores(world, tokens, experts, seed=100 + world.rank)).softmax(-1).T[None]
    kept, best = {}, {}
    world.cost("tokens with more than b experts, no cap", above(s, k, most), "tokens")
    for entropy in (1.0, 0.1, 0.01):
        a, rounds = capped(s, k, most, entropy, iterations=20_000, tolerance=CONVERGED)
        rows, columns = (a.sum(-1) - k).abs().max().item(), (a.sum(1) - most).max().item()
        off = max(rows, columns, a.max().item() - 1, -a.min().item())
        case = f"λ = {entropy:g}"
        kept[case] = Claim("", "Σ row = k, Σ column ≤ b, 0 ≤ a ≤ 1", CONVERGED, off, "1", source, "compared", "<=")
        logarithms, _ = uncut(s, k, most, entropy, iterations=20_000, tolerance=CONVERGED)
        part = in_parts_of_the_best(s[0], logarithms[0], k, most, entropy)
        best[case] = Claim("", "max ⟨Sᵀ, A⟩ + λH(A), by duality", 1, part, "1", source, "compared", tolerance=CONVERGED)
        world.cost(f"tokens with more than b experts, {case}", above(a, k, most), "tokens")
        world.cost(f"until A at {case} is off by less than {CONVERGED:g}", rounds, "rounds")
    return [
        fold("A's largest violation of a constraint, λ = 1, 0.1, 0.01", kept),
        fold("what A reaches, in parts of the best possible, λ = 1, 0.1, 0.01", best),
    ]


def in_parts_of_the_best(s: torch.Tensor, logarithms: torch.Tensor, k: int, most: int, entropy: float) -> float:
    """⟨S, A⟩ + λH(A) over a number that no A within the constraints exceeds: weak duality.

    Whatever rows cost (u) and columns cost (v, not below 0), no A is worth more than kΣu + bΣv + Σ max over a of
    a(s − u − v) − λ a ln a, with a from 0 to 1. Where ln a = (s − u − v)/λ − 1, this maximum is λa; where that is above
    0, it is s − u − v. Prices are read off A; if A is not the best, there are none that fit, and the bound is far away.

    Args:
        s: S, [experts, tokens].
        logarithms: ln A, before entries are cut at 1.
        k: The sum of a row.
        most: b.
        entropy: λ.
    """
    a = logarithms.clamp_max(0).exp()
    value = (s * a).sum() - entropy * torch.special.xlogy(a, a).sum()
    price = s - entropy * (logarithms + 1)
    column = price[0] - price[0].min()  # a column that is not full costs nothing
    row = (price - column).mean(1)
    worth = s - row[:, None] - column
    inside = entropy * (worth / entropy - 1).clamp_max(0).exp()
    dual = k * row.sum() + most * column.sum() + torch.where(worth > entropy, worth, inside).sum()
    return (value / dual).item()


def cap_kept(
    world: World, router: Any, within_cap: Any, experts: int, tokens: int, factor: float, most: int
) -> list[Claim]:
    """Claims that no token has more than b experts, though A has not converged, and that the exchange loses least."""
    choice = by_scores(router(experts, experts, capacity_factor=factor, most=most), world)
    found = choice.route(2 * random_scores(world, 4 * tokens, experts, seed=100 + world.rank), groups=4)
    what = f"most experts of a token with a cap of b, λ = {choice.entropy:g}, {choice.iterations} rounds"
    liking = torch.tensor(lesson.PERCENT).T.double()  # [experts, tokens]
    mine = within_cap(liking[None], k=2, most=1)[0]
    reached, source = (liking * mine).sum().item() if int(mine.sum(0).max()) == 1 else 0.0, "derived"
    best = max(
        sum(lesson.PERCENT[token][expert] for expert, pair in enumerate(pairs) for token in pair)
        for pairs in shared_out(tuple(range(8)))
    )
    return [
        Claim(what, "b", most, int(found.experts_per_token().max()), "1", f"{ZHOU}, §3.3", relation="<=", key=True),
        Claim("eight tokens, k = 2, b = 1: sum of percents", "max over 2,520 ways", best, reached, "1", source),
    ]


def shared_out(tokens: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways in which experts can share tokens, two each."""
    if not tokens:
        yield ()
    for pair in combinations(tokens, 2):
        for others in shared_out(tuple(token for token in tokens if token not in pair)):
            yield pair, *others


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
            f"{ZHOU}, §6",
            "compared",
            ">=",
            key=True,
        ),
        Claim(
            "the same if tokens choose (Switch, evaluation)",
            "0: each by itself",
            0,
            changed[1],
            "1",
            "derived",
            "compared",
        ),
    ]


def earlier_changes(router: Router, x: torch.Tensor, other: torch.Tensor) -> int:
    """How many pairs of an earlier token and an expert only one of two sequences has; the last token is left out."""
    pairs = [{entry[:2] for entry in entries(router.route(each)) if entry[0] < len(x) - 1} for each in (x, other)]
    return len(pairs[0] ^ pairs[1])


def demo(world: World, experts: int = 8, tokens: int = 31, capacity_factor: float = 2.0, most: int = 2) -> list[Claim]:
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
    small, route = expert_choice.route, partial(expert_choice.route, capacity_factor=capacity_factor)
    claims = [
        *lesson.like_full_form(world, ExpertChoice(experts + 3, experts, capacity_factor=capacity_factor), route),
        *full(world, ExpertChoice, small, experts, tokens, capacity_factor),
        *cap(world, capped, uncut, experts, tokens, capacity_factor, most),
        *cap_kept(world, ExpertChoice, within_cap, experts, tokens, capacity_factor, most),
        *later_tokens(world, ExpertChoice, Switch, experts, tokens),
        lesson.same_when_split(world, make),
    ]
    lesson.timed(world, ExpertChoice(256, experts))
    return claims
