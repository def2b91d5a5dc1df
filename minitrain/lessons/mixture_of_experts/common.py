"""Shared by the routers' demos: tokens whose scores are given, comparisons of routings, and their picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AnyRouter = TypeVar("AnyRouter", bound=Router)
Entry = tuple[int, int, int]
"""Token, expert, place."""

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
CHANCE = 1e-9  # how likely a bound on random numbers may fail
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
PALE = ("#E69F00", "#56B4E9", "#F0E442")


def by_scores(router: AnyRouter, world: World) -> AnyRouter:
    """Give the router W_g = 1, in float64, so that a token of `hidden` = `experts` numbers is its own scores."""
    with torch.no_grad():
        nn.init.eye_(router.gate.weight)
    return router.to(world.device, torch.float64)


def eight_tokens(world: World) -> Tensor:
    """Their scores, such that a softmax gives the probabilities of `PERCENT`."""
    return (torch.tensor(PERCENT, dtype=torch.float64) / 100).log().to(world.device)


def parts_and_means() -> tuple[list[float], list[float]]:
    """f and P of the eight tokens: the part that likes each expert best, and the mean of each column."""
    best = [row.index(max(row)) for row in PERCENT]
    parts = [best.count(expert) / len(PERCENT) for expert in range(4)]
    return parts, [sum(row[expert] for row in PERCENT) / 100 / len(PERCENT) for expert in range(4)]


def random_scores(world: World, tokens: int, experts: int, seed: int = 0) -> Tensor:
    """Scores that are normally distributed: every expert is as likely to be a token's best."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, experts, generator=generator, dtype=torch.float64).to(world.device)


def lopsided_scores(world: World, tokens: int, experts: int, seed: int = 0) -> Tensor:
    """The same, with a first expert that most tokens prefer."""
    scores = random_scores(world, tokens, experts, seed)
    scores[:, 0] += 2
    return scores


def balanced_scores(world: World, experts: int, rounds: int = 2) -> Tensor:
    """Tokens of which the first prefers expert 0, then 1, and so on, in the same way: each rank in a way of its own."""
    falling = torch.arange(experts, 0, -1, dtype=torch.float64) * (world.rank + 1) / experts
    turns = [falling.roll(token % experts) for token in range(rounds * experts)]
    return torch.stack(turns).to(world.device)


def entries(routing: Routing, first_token: int = 0) -> list[Entry]:
    """The routing as triples, its tokens numbered from `first_token`."""
    lists = routing.token + first_token, routing.expert, routing.position_in_expert
    return list(zip(*(numbers.tolist() for numbers in lists), strict=True))


def unlike(one: Routing, other: Routing) -> int:
    """How many entries only one of two routings has."""
    return len(set(entries(one)) ^ set(entries(other)))


def dense(routing: Routing) -> Tensor:
    """The weights as a table, `[tokens, experts]`, 0 where a token does not go."""
    table = routing.weight.new_zeros(routing.tokens, routing.experts)
    return table.index_put((routing.token, routing.expert), routing.weight)


def fullest(routing: Routing) -> tuple[int, int]:
    """The fewest and the most tokens that an expert has in a group."""
    place = routing.group() * routing.experts + routing.expert
    counts = torch.bincount(place, minlength=routing.groups * routing.experts)
    return int(counts.min()), int(counts.max())


def shared_places(routing: Routing) -> int:
    """How many entries have a place that another has too."""
    held = zip(routing.group().tolist(), routing.expert.tolist(), routing.position_in_expert.tolist(), strict=True)
    return len(routing.token) - len(set(held))


def hoeffding(count: int, width: float = 1.0) -> float:
    """How far the mean of `count` independent numbers, each within `width`, may be from what is expected.

    Source: Hoeffding 1963, theorem 2, and McDiarmid 1989 where one token changes a count by at most 1.
    """
    return width * math.sqrt(math.log(2 / CHANCE) / (2 * count))


def same_when_split(world: World, make: Callable[[int], Router], experts: int = 4) -> Claim:
    """The claim that a sequence is routed alike whichever rank has it, and whatever the other sequences are.

    One rank routes all sequences. Then all ranks route them, each some; and one rank once more, where the first
    sequence is another.

    Args:
        world: The ranks.
        make: A router for so many experts, each as wide as their number.
        experts: Their number.
    """
    size, mine = 16, 2  # tokens of a sequence, and sequences of each rank
    router = by_scores(make(experts), world)
    x = lopsided_scores(world, world.size * mine * size, experts)
    first = world.rank * mine * size
    router.set_position(seed=0, step=1)
    whole = router.route(x, groups=world.size * mine)
    beside = x.clone()
    beside[:size] = random_scores(world, size, experts, seed=77)
    router.set_position(seed=0, step=1)
    other = router.route(beside, groups=world.size * mine)
    router.set_position(seed=0, step=1, first_token=first)
    own = router.route(x[first : first + mine * size], groups=mine)
    everyone = gather_objects((entries(own, first), own.weight.tolist(), own.auxiliary_loss.item()))
    found = [entry for theirs, _, _ in everyone for entry in theirs]
    weights = [weight for _, theirs, _ in everyone for weight in theirs]
    distance = float("inf")
    if found == entries(whole):
        distance = (torch.tensor(weights, dtype=torch.float64) - whole.weight.detach().cpu()).abs().max().item()
    loss = sum(theirs for _, _, theirs in everyone) / world.size
    apart = abs(loss - whole.auxiliary_loss.item())
    rest = [{entry for entry in entries(each) if entry[0] >= size} for each in (whole, other)]
    what, formula = "distance of routings and losses, shared by ranks, from one rank's", "same entries; 10⁻¹², float64"

    def within(measured: float) -> Claim:
        return Claim(what, formula, EXACT, measured, "1", "derived", "compared", "<=")

    cases = {
        "weights, infinite if entries differ": within(distance),
        "mean auxiliary loss": within(apart),
        "entries that change with another sequence": within(len(rest[0] ^ rest[1])),
    }
    return fold(what, cases)


def without_a_place(world: World, make: Callable[[int], Router], experts: int = 4) -> Claim:
    """The claim that the comparison sees noise which belongs to ranks: here each numbers its tokens from 0."""
    what, tokens = "entries that differ if each rank numbers its tokens from 0", 32
    if world.size == 1:
        return Claim.needs_ranks(2, what, "at least 1", "derived")
    router = by_scores(make(experts), world)
    x = lopsided_scores(world, 2 * tokens, experts)
    router.set_position(seed=0, step=1)
    whole = router.route(x, groups=2)
    router.set_position(seed=0, step=1)
    second = router.route(x[tokens:])
    expected = [entry for entry in entries(whole) if entry[0] >= tokens]
    wrong = len(set(entries(second, tokens)) ^ set(expected))
    return Claim(what, "at least 1", 1, wrong, "1", "derived", "compared", ">=")


def in_both_forms(
    what: str, formula: str, predicted: float, measured: Sequence[float], source: str, key: bool = False
) -> Claim:
    """The claim that the small form and the full form, in this order, give what the formula says."""
    room = {"tolerance": EXACT, "absolute": 0.0 if predicted else EXACT}
    cases = {
        f"{form} form": Claim("", formula, predicted, value, "1", source, "compared", **room)
        for form, value in zip(("small", "full"), measured, strict=True)
    }
    return fold(f"{what}, both forms", cases, key)


def like_full_form(world: World, router: Router, route: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> list[Claim]:
    """Claims that a small form chooses and computes what the full form does, on tokens that experts do not divide."""
    x = random_scores(world, 61, router.hidden, seed=world.rank)
    choices, elements, apart = differences(
        router.to(world.device, torch.float64), route, x, first_token=61 * world.rank
    )
    same = {
        "choices": Claim("", "0", 0, choices, "1", "derived", "compared"),
        "elements of gates and loss": Claim("", "0", 0, elements, "1", "derived", "compared"),
    }
    what = "small form: distance of all gradients from the full form's"
    return [
        fold("small form: choices, gates and losses that differ from the full form's", same, key=True),
        # A product may add in another order where its factors lie otherwise in memory.
        Claim(what, "10⁻¹², float64", EXACT, apart, "1", "derived", "compared", "<="),
    ]


def differences(
    router: Router, route: Callable[..., tuple[Tensor, Tensor, Tensor]], x: Tensor, first_token: int = 0
) -> tuple[int, int, float]:
    """Choices that only one form makes, elements of gates and loss that differ, and how far gradients are apart.

    Args:
        router: The full form; it gets weights that decide clearly.
        route: The small form, called with x and the full form's parameters in their order.
        x: One sequence.
        first_token: The number of its first token among all tokens of the step.
    """
    generator = torch.Generator().manual_seed(3)
    weights = list(router.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=x.dtype))
    towards = torch.randn(len(x), router.experts, generator=generator, dtype=x.dtype).to(x.device)
    x = x.clone().requires_grad_()
    router.set_position(seed=0, step=1, first_token=first_token)
    routing = router.route(x)
    chosen, gates, loss = route(x, *weights)
    token, choice = (chosen >= 0).nonzero(as_tuple=True)
    expert = chosen[token, choice]
    mine = set(zip(token.tolist(), expert.tolist(), strict=True))
    choices = len(mine ^ {entry[:2] for entry in entries(routing)}) + len(token) - len(mine)
    choices += int((chosen < -1).sum())
    table = torch.zeros_like(towards).index_put((token, expert), gates[token, choice])
    both = []
    for weighted, auxiliary in ((dense(routing), routing.auxiliary_loss), (table, loss)):
        gradients = torch.autograd.grad((weighted * towards).sum() + auxiliary, [x, *weights])
        both.append([weighted, auxiliary, *gradients])
    elements = sum(int((one != other).sum()) for one, other in zip(both[0][:2], both[1][:2], strict=True))
    elements += int((gates[chosen < 0] != 0).sum())  # a choice that is not made or dropped weighs nothing
    apart = max((one - other).abs().max().item() for one, other in zip(both[0][2:], both[1][2:], strict=True))
    return choices, elements, apart


def example(router: Router, world: World) -> Routing:
    """Eight tokens of four numbers, which are their scores: most like expert 0."""
    rows = (
        [3, 1, 0, 0],
        [2, 1, 1, 0],
        [0, 2, 0, 1],
        [3, 0, 2, 0],
        [1, 0, 3, 2],
        [2, 3, 0, 0],
        [3, 0, 0, 1],
        [0, 1, 2, 3],
    )
    x = torch.tensor(rows, dtype=torch.float64, device=world.device)
    router.set_position(seed=0, step=0)
    return by_scores(router, world).route(x)


def timed(world: World, router: Router, tokens: int = 4096, groups: int = 8) -> None:
    """Note the seconds of a routing; a first one is not counted."""
    router = router.to(world.device)
    x = random_scores(world, tokens, router.hidden).float()
    router.set_position(seed=0, step=0)
    router.route(x, groups=groups)
    with world.timed(f"routing {tokens} tokens to {router.experts} experts", tokens, "tokens"):
        router.route(x, groups=groups)


def picture_of(routing: Routing, names: Sequence[str] | None = None) -> Figure:
    """Tokens at the left, experts with their places at the right, and a line for each choice, thicker for more weight.

    A dashed line that ends in a cross is a choice that found no place; a hollow token goes to no expert.

    Args:
        routing: A small one, 8 tokens say. Where there are groups, an expert's places for each lie below each other.
        names: The labels next to the tokens; None: their numbers.
    """
    from matplotlib.figure import Figure

    groups = max(routing.groups, 1)
    most = max(fullest(routing)[1], 1) if routing.capacity is None else routing.capacity
    height = most * groups + 1
    rows = max(routing.tokens, height * routing.experts)
    figure = Figure(figsize=(6.5, 0.6 + 0.21 * rows), layout="constrained")
    axes = figure.add_subplot()
    left = torch.linspace(0, rows - 2, routing.tokens).tolist()
    tops = [expert * rows / routing.experts for expert in range(routing.experts)]
    for token, busy in enumerate((routing.experts_per_token() > 0).tolist()):
        axes.plot(0, left[token], "o", color="black", markerfacecolor="black" if busy else "white", markersize=7)
        axes.text(-0.04, left[token], names[token] if names else f"token {token}", ha="right", va="center")
    for expert, top in enumerate(tops):
        axes.text(1.14, top + (height - 2) / 2, f"expert {expert}", va="center")
        for row in range(most * groups if routing.capacity is not None else 0):
            _place(axes, top + row, "white", "")
    weights = routing.weight.detach().float().tolist()
    for (token, expert, place), group, weight in zip(entries(routing), routing.group().tolist(), weights, strict=True):
        row, colour = tops[expert] + group * most + place, COLOURS[expert % len(COLOURS)]
        axes.plot([0, 1], [left[token], row], color=colour, linewidth=0.5 + 3 * weight, zorder=1)
        _place(axes, row, colour, str(token))
    for token, expert in routing.dropped.tolist():
        row = tops[expert] + most * groups - 0.3
        axes.plot([0, 0.97], [left[token], row], "--", color="grey", linewidth=1, zorder=1)
        axes.plot(0.97, row, "x", color="black", markersize=7)
    axes.set(xlim=(-0.25, 1.4), ylim=(rows - 0.6, -0.7))
    axes.axis("off")
    return figure


def _place(axes: Axes, row: float, colour: str, text: str) -> None:
    """One place of an expert, with the number of the token that has it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((1.0, row - 0.42), 0.1, 0.84, facecolor=colour, edgecolor="black", linewidth=0.8))
    ink = "black" if colour in PALE else "white"
    axes.text(1.05, row, text, ha="center", va="center", fontsize=8, color=ink, fontweight="bold")
