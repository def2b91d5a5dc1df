"""The lesson of `minitrain.mixture_of_experts.shared_experts`: what every token goes through, and what it costs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import bias_balanced
from minitrain.mixture_of_experts.layer import MoELayer, Route
from minitrain.mixture_of_experts.shared_experts import SharedExperts


@torch.no_grad()
def demo(world: World) -> list[Claim]:
    """Adds shared experts to a mixture; the table shows outputs, parameters and operations."""
    rows, bound = Rows("Dai et al. 2024, §3.2"), (1e-12, "10⁻¹²", ROUNDING)
    experts, choices, shared, hidden, inner = 60, 12, 4, 16, 4
    x = torch.randn(2, 8, hidden, generator=torch.Generator().manual_seed(world.rank), dtype=torch.float64)
    x = x.to(world.device)

    bias = torch.zeros(experts, dtype=torch.float64, device=world.device)
    model = make(world, experts, shared, hidden, inner, partial(bias_balanced.route, bias=bias, choices=choices))
    what = "distance of the output from Σ shared + Σ gate · chosen, token by token"
    with FlopCounterMode(display=False) as counter:
        y = model(x)
    rows.near(what, y.flatten(0, 1), token_by_token(model, x), *bound)
    sizes, held = (shared, hidden, inner), sum(p.numel() for p in model.parameters())
    wanted = costs.shared_parameters(experts, *sizes)
    rows.add("parameters of both", "(E + s)(2hm + m + h) + hE", wanted, held, "parameters")
    wanted, flops = costs.shared_flops(x[..., 0].numel(), experts, choices, *sizes), counter.get_total_flops()
    rows.add("operations of both, forward", "(k + s) · 4hm + 2hE per token", wanted, flops, "1")
    return rows.claims()


def make(world: World, experts: int, shared: int, hidden: int, inner: int, route: Route) -> SharedExperts:
    """A mixture with shared experts in float64, the same on all ranks."""
    torch.manual_seed(0)

    def feed_forward(count: int) -> list[nn.Module]:
        return [nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, hidden)) for _ in range(count)]

    routed = MoELayer(nn.Linear(hidden, experts, bias=False), feed_forward(experts), route)
    return SharedExperts(routed, feed_forward(shared)).to(world.device, torch.float64)


def token_by_token(model: SharedExperts, x: Tensor) -> Tensor:
    """Equation 9, worked out for each token."""
    rows = []
    for token, experts, gates in zip(x.flatten(0, 1), *model.routed.choose(x), strict=True):
        parts = [gate * model.routed.experts[e](token) for e, gate in zip(experts.tolist(), gates, strict=True)]
        rows.append(torch.stack([*parts, *(each(token) for each in model.shared)]).sum(0))
    return torch.stack(rows)
