"""What the demo of `layer` claims: three ways to compute agree, and work does not grow with the number of experts.

The three add the same products in orders of their own, so that they agree to rounding: in float64 to 10⁻¹², where sums
have a few hundred terms of the size of 1. Work is counted by torch's `FlopCounterMode`, two operations for each
multiplication and addition.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.mixture_of_experts import small
from minitrain.mixture_of_experts import layer as small_layer
from minitrain.mixture_of_experts.full.compute import WAYS, Way
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAZEER, GSHARD, DERIVED, BOUND = "Shazeer et al. 2017, §1.1", "Lepikhin et al. 2020, §2.2", "derived", 1e-12
GROUPS = 2
OTHER_WAYS: tuple[Way, ...] = ("grouped", "padded")


def make_layer(world: World, experts: int, hidden: int, capacity_factor: float | None, way: Way = "loop") -> MoELayer:
    """A layer in float64 with numbers of the size of 1, the same each time."""
    generator = torch.Generator().manual_seed(experts)
    config = GPTConfig(hidden=hidden, heads=1)
    layer = MoELayer(
        Switch(hidden, experts, capacity_factor=capacity_factor), [MLP(config) for _ in range(experts)], way
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer.to(world.device)


def sequences(world: World, tokens: int, hidden: int) -> Tensor:
    """This rank's tokens, in `GROUPS` sequences."""
    generator = torch.Generator().manual_seed(100 + world.rank)
    return torch.randn(GROUPS, tokens, hidden, generator=generator, dtype=torch.float64).to(world.device)


def step(layer: MoELayer | small_layer.MoELayer, x: Tensor) -> list[Tensor]:
    """The output, its input's gradient and the parameters', of a forward and a backward."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    (y.sin().mean() + layer.auxiliary_loss).backward()
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    assert x.grad is not None
    return [y.detach(), x.grad, *gradients]


def operations(layer: MoELayer, x: Tensor) -> int:
    """Operations of the experts' products in a forward."""
    layer(x)
    assert layer.routing is not None
    rows = layer.dispatch(x.flatten(0, 1), layer.routing)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.compute_experts(rows, layer.routing)
    return counter.get_total_flops()


def claims(world: World, tokens: int, experts: int, hidden: int) -> list[Claim]:
    """All claims of the demo; see there."""
    x = sequences(world, tokens, hidden)
    layer = make_layer(world, experts, hidden, capacity_factor=1.0)
    expected, of_small = step(layer, x), step(small.layer_of(layer, 1.0), x)

    def apart(found: list[Tensor], formula: str = "10⁻¹², float64") -> Claim:
        off = max((mine - its).abs().max().item() for mine, its in zip(found, expected, strict=True))
        return Claim("", formula, BOUND, off, "1", DERIVED, "compared", "<=")

    forms = {
        "small form, from the full form": apart(of_small),
        **{f"{way}, from the loop": apart(step(make_layer(world, experts, hidden, 1.0, way), x)) for way in OTHER_WAYS},
    }
    assert layer.routing is not None
    alone = layer.routing.experts_per_token() == 0
    zeros = {
        f"{form} form": Claim("", "0", 0, int((y[0].flatten(0, 1)[alone] != 0).sum()), "1", GSHARD)
        for form, y in (("small", of_small), ("full", expected))
    }
    rows = [
        fold("distance of output and all gradients: small form from full, grouped and padded from loop", forms, True),
        fold("elements that a token without expert gets, other than 0", zeros, key=True),
        *work(world, x, experts),
    ]
    padded, most = make_layer(world, experts, hidden, 1.0, "padded"), int(layer.routing.load().max())
    wanted, places = costs.expert_flops(experts * most, hidden, 4 * hidden), operations(padded, x)
    rows.append(Claim("operations, padded, forward", "4hm · E · rows of the fullest", wanted, places, "1", DERIVED))
    rows.append(riding(layer, x, expected))
    world.figure(lambda: picture(layer))
    for way in WAYS:
        fast = copy.deepcopy(make_layer(world, experts, hidden, 1.0, way))
        with world.timed(f"a step of {GROUPS * tokens} tokens, {experts} experts, {way}"):
            step(fast, x)
    return rows


def work(world: World, x: Tensor, experts: int) -> list[Claim]:
    """Claims that experts' work does not grow with their number, and that backward takes twice as much as forward."""
    hidden, tokens = x.shape[-1], x[..., 0].numel()
    forward = costs.expert_flops(tokens, hidden, 4 * hidden)
    rows = []
    for count in (experts, 2 * experts):
        every = small.layer_of(make_layer(world, count, hidden, capacity_factor=None), count)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            every(x)
        wanted = forward + costs.router_flops(tokens, hidden, count)
        title = f"small form: operations of {count} experts and their router, forward"
        rows.append(Claim(title, "4hm + 2hE a token", wanted, counter.get_total_flops(), "1", SHAZEER, key=True))
    with FlopCounterMode(display=False) as counter:
        step(every, x)
    title, total = f"{title} and backward", counter.get_total_flops()
    rows.append(Claim(title, "3 · (4hm + 2hE) a token", 3 * wanted, total, "1", DERIVED))
    cases = {
        f"{count} experts": Claim(
            "", "4hm a token, for any number", forward, operations(make_layer(world, count, hidden, None), x)
        )
        for count in (experts, 2 * experts)
    }
    what = f"operations of {experts} and of {2 * experts} experts, loop, forward"
    return [*rows, dataclasses.replace(fold(what, cases), source=SHAZEER)]


def riding(layer: MoELayer, x: Tensor, expected: list[Tensor]) -> Claim:
    """The claim that an auxiliary loss that rides along gives the gradients of one that is added."""
    other = copy.deepcopy(layer)
    other.riding_loss = 1.0
    other.zero_grad()
    z = x.clone().requires_grad_()
    other(z).sin().mean().backward()
    assert z.grad is not None
    found = [z.grad, *(p.grad for p in other.parameters() if p.grad is not None)]
    apart = max((mine - its).abs().max().item() for mine, its in zip(found, expected[1:], strict=True))
    what = "riding auxiliary loss: distance of gradients from those of an added one"
    return Claim(what, "∂y + ∂ℓ, to 10⁻¹²", BOUND, apart, "1", DERIVED, "compared", "<=")


def picture(layer: MoELayer) -> Figure:
    """Tokens that each expert got, and those that found no place."""
    from matplotlib.figure import Figure

    assert layer.routing is not None
    got, wanted = layer.routing.load().tolist(), layer.routing.demand().tolist()
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    numbers = range(len(got))
    axes.bar(numbers, wanted, fill=False, hatch="///", edgecolor="grey", label="chose it and found no place")
    axes.bar(numbers, got, edgecolor="black", label="went through it")
    axes.set(xlabel="expert", ylabel="tokens", xticks=numbers)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def demo(world: World, tokens: int = 64, experts: int = 5, hidden: int = 16) -> list[Claim]:
    """Computes one layer in three ways; the table shows that they agree, and what becomes of dropped tokens.

    Args:
        tokens: Tokens in each of two sequences.
        experts: Number of experts.
        hidden: Width of a token; an expert is four times as wide inside.
    """
    return claims(world, tokens, experts, hidden)
