"""The lesson of `minitrain.mixture_of_experts.shared_experts`: what every token goes through, and what it costs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import bias_balanced, switch
from minitrain.mixture_of_experts.layer import MoELayer, Route
from minitrain.mixture_of_experts.shared_experts import SharedExperts

DAI = "Dai et al. 2024, §3.2"


def demo(world: World, experts: int = 15, choices: int = 3, shared: int = 1, hidden: int = 16) -> list[Claim]:
    """Adds shared experts to a mixture; the table shows outputs, parameters and operations.

    Args:
        experts: Number of experts to choose from.
        choices: How many of them a token chooses.
        shared: Number of shared experts.
        hidden: Width of a token, and of an expert inside.
    """
    x = torch.randn(2, 8, hidden, generator=torch.Generator().manual_seed(world.rank), dtype=torch.float64)
    x = x.to(world.device)
    model = make(world, experts, choices, shared, hidden, hidden)
    claims = [*as_key(token_by_token(model, x), dropped(world, x), *counted(model, x, choices)), wide(world, x)]
    with world.timed(f"{x[..., 0].numel()} tokens through {choices} of {experts} experts and {shared} shared"):
        model(x)
    return claims


def expert(hidden: int, inner: int) -> nn.Sequential:
    """A feed-forward layer."""
    return nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, hidden))


def make(
    world: World, experts: int, choices: int, shared: int, hidden: int, inner: int, route: Route | None = None
) -> SharedExperts:
    """A mixture with shared experts in float64, the same on all ranks; each token chooses `choices`."""
    torch.manual_seed(0)
    router = nn.Linear(hidden, experts, bias=False)
    bias = torch.zeros(experts, dtype=torch.float64, device=world.device)
    choose = route or partial(bias_balanced.route, bias=bias, choices=choices)
    routed = MoELayer(router, [expert(hidden, inner) for _ in range(experts)], choose)
    return SharedExperts(routed, [expert(hidden, inner) for _ in range(shared)]).to(world.device, torch.float64)


def distance(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference of any element."""
    return (one - other).abs().max().item()


@torch.no_grad()
def token_by_token(model: SharedExperts, x: Tensor) -> Claim:
    """The claim on equation 9, worked out for each token."""
    tokens = x.flatten(0, 1)
    routed = model.routed
    chosen, gates = routed.choose(x)
    rows = []
    for token, experts, weights in zip(tokens, chosen.tolist(), gates.tolist(), strict=True):
        parts = [weight * routed.experts[e](token) for e, weight in zip(experts, weights, strict=True)]
        rows.append(torch.stack([*parts, *(each(token) for each in model.shared)]).sum(0))
    apart = distance(model(x).flatten(0, 1), torch.stack(rows))
    what = "distance of the output from Σ shared + Σ gate · chosen, token by token"
    return Claim(what, "10⁻¹², float64", lesson.EXACT, apart, "1", DAI, "compared", "<=")


@torch.no_grad()
def dropped(world: World, x: Tensor) -> Claim:
    """The claim that a token without a slot still goes through the shared experts."""
    hidden = x.shape[-1]
    # A sequence of 8 tokens, and ⌊0.5 · 8/2⌋ = 2 slots of each of two experts: at least 4 are dropped.
    model = make(world, 2, 1, 2, hidden, hidden, partial(switch.route, capacity_factor=0.5))
    alone = (model.routed.choose(x)[0] < 0).all(-1)
    first, second = model.shared
    wrong = distance(model(x).flatten(0, 1)[alone], (first(x) + second(x)).flatten(0, 1)[alone])
    return Claim(
        "dropped tokens: distance of their output from the sum of the shared experts",
        "10⁻¹², float64",
        lesson.EXACT,
        wrong,
        "1",
        DAI,
        "compared",
        "<=",
    )


def counted(model: SharedExperts, x: Tensor, choices: int) -> list[Claim]:
    """Claims on parameters and operations, also with each expert cut in four and four times as many chosen."""
    routed = model.routed
    experts, shared, hidden = len(routed.experts), len(model.shared), x.shape[-1]
    tokens, cases = x[..., 0].numel(), {}
    both = [(1, model)]
    fine = [expert(hidden, hidden // 4) for _ in range(4 * experts)]
    router = nn.Linear(hidden, 4 * experts, bias=False)
    bias = torch.zeros(4 * experts, dtype=x.dtype, device=x.device)
    route = partial(bias_balanced.route, bias=bias, choices=4 * choices)
    cut = SharedExperts(MoELayer(router, fine, route), [expert(hidden, hidden // 4) for _ in range(4 * shared)])
    both.append((4, cut.to(x.device, x.dtype)))
    parameters = {}
    for parts, each in both:
        sizes = parts * experts, parts * shared, hidden, hidden // parts
        held = sum(p.numel() for p in each.parameters())
        name = "experts as they are" if parts == 1 else f"cut in {parts}"
        parameters[name] = Claim(
            "", "(E + s)(2hm + m + h) + hE", costs.shared_parameters(*sizes), held, "parameters", DAI
        )
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            each(x)
        wanted = costs.shared_flops(tokens, sizes[0], parts * choices, *sizes[1:])
        cases[name] = Claim("", "(k + s) · 4hm + 2hE a token", wanted, counter.get_total_flops(), "1", DAI)
    return [
        fold("parameters, of whole experts and of four times as many that are a quarter as wide", parameters),
        fold("operations of both, forward", cases),
    ]


@torch.no_grad()
def wide(world: World, x: Tensor) -> Claim:
    """The claim that two shared experts are one feed-forward layer that is twice as wide."""
    hidden = x.shape[-1]
    two = make(world, 2, 1, 2, hidden, hidden)
    one = expert(hidden, 2 * hidden).to(x.device, x.dtype)
    weights = zip(one.parameters(), *(each.parameters() for each in two.shared), strict=True)
    # What is inside grows, side by side; the biases of the output add up.
    for (into, first, second), dim in zip(weights, (0, 0, 1, None), strict=True):
        into.copy_(first + second if dim is None else torch.cat([first, second], dim))
    apart = distance(two(x), SharedExperts(two.routed, [one])(x))
    what = "two shared experts: distance from one that is twice as wide"
    return Claim(what, "10⁻¹², float64", lesson.EXACT, apart, "1", "derived", "compared", "<=")
