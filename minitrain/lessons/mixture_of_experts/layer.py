"""The lesson of `minitrain.mixture_of_experts.layer`: its forms agree, and work hardly grows with the experts.

The forms add the same products in orders of their own, so that they agree to rounding: in float64 to 10⁻¹², where sums
have a few hundred terms of the size of 1. Work is counted by torch's `FlopCounterMode`, two operations for each
multiplication and addition.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import layer as small
from minitrain.mixture_of_experts import switch
from minitrain.mixture_of_experts.full.compute import Way
from minitrain.mixture_of_experts.full.layer import MoELayer
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import MLP


def demo(world: World) -> list[Claim]:
    """Computes one layer in both forms; the table shows that they agree, what dropped tokens get, and operations."""
    rows, experts, hidden = Rows("Shazeer et al. 2017, §1.1"), 5, 16
    x = torch.randn(2, 64, hidden, generator=torch.Generator().manual_seed(world.rank), dtype=torch.float64)
    x = x.to(world.device)
    loop = make_layer(world, Switch(hidden, experts, capacity_factor=1.0))
    model, expected = small_layer(loop, 1.0), step(loop, x, len(x))
    what = "distance of output and all gradients: small form from full form"
    rows.near(what, step(model, x, len(x)), expected, 1e-12, "10⁻¹²", ROUNDING)
    alone = model.choose(x)[0][:, 0] < 0
    y = model(x).flatten(0, 1)[alone]
    what = "elements that a token without expert gets, other than 0"
    rows.add(what, "0", 0, int((y != 0).sum()), "1", "Lepikhin et al. 2020, §2.2")

    for count in (experts, 2 * experts):
        every = small_layer(make_layer(world, Switch(hidden, count)), count)  # no token is dropped
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            every(x)
        routes = x[..., 0].numel()
        wanted = costs.expert_flops(routes, hidden, 4 * hidden) + costs.router_flops(routes, hidden, count)
        what = f"small form: operations of {count} experts and their router, forward"
        rows.add(what, "4hm + 2hE per token", wanted, counter.get_total_flops(), "1")
    return rows.claims()


def make_layer(world: World, router: Router, way: Way = "loop") -> MoELayer:
    """The full form in float64 with numbers of the size of 1, the same on all ranks."""
    experts = [MLP(GPTConfig(hidden=router.hidden, heads=1)) for _ in range(router.experts)]
    layer, generator = MoELayer(router, experts, way).double(), torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return layer.to(world.device)


def small_layer(full: MoELayer, capacity_factor: float = 1.25) -> small.MoELayer:
    """The small form with copies of a full one's experts and Switch router."""
    router, experts = copy.deepcopy(full.router.gate), [copy.deepcopy(each) for each in full.experts.values()]
    return small.MoELayer(router, experts, partial(switch.route, capacity_factor=capacity_factor))


def step(model: Any, x: Tensor, sequences: int, ranks: int = 1) -> list[Tensor]:
    """Output, gradient of x, and gradients of the router and of the experts that are here, in their order.

    The loss is the mean over the `sequences` of all ranks, of which `x` has this rank's; `ranks` average gradients.
    """
    mixture = getattr(model, "module", model)
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    part = y.sin().sum() / (sequences * x.shape[1]) + mixture.auxiliary_loss * len(x) / sequences
    (ranks * part).backward()  # the mean of this over ranks is the mean over the batch
    if mixture is not model:
        model.synchronize()
    assert x.grad is not None
    return [y.detach(), x.grad / ranks, *gradients(mixture.router, *mixture.experts.children())]


def gradients(*modules: nn.Module) -> list[Tensor]:
    """Of all their parameters, in their order."""
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def operations(layer: MoELayer, x: Tensor) -> int:
    """Operations of the full form's experts alone in a forward, for the notebook."""
    layer(x)
    assert layer.routing is not None
    rows = layer.dispatch(x.flatten(0, 1), layer.routing)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.compute_experts(rows, layer.routing)
    return counter.get_total_flops()
