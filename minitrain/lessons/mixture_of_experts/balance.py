"""How evenly each router loads its experts while a layer trains: all routers, on the same tokens; for notebook 12c.

Nothing is claimed here. Tokens come in kinds, of which some are more frequent than others, and the layer learns to
map them as a fixed feed-forward layer does. What is recorded is the load of the busiest expert over the mean: 1 at
balance, E/k if all tokens choose the same k experts. No router here has a capacity, so a token's choice is never lost.
A step has few tokens, so chance keeps even a fair router a little above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.mixture_of_experts import bias_balanced, expert_choice, gshard, noisy_top_k, switch
from minitrain.mixture_of_experts.layer import MoELayer, Route
from minitrain.mixture_of_experts.z_loss import with_z_loss

HIDDEN, EXPERTS, KINDS, TOKENS = 16, 8, 24, 256
SPEED = 0.01  # of the biases; ten times the papers', since a run here has a few hundred steps
FACTOR = 0.1  # of auxiliary losses; 0.01 in Switch's paper, where the loss of the task is larger
SWITCH = partial(switch.route, capacity_factor=EXPERTS, loss_factor=FACTOR)
# At balance, GShard's loss is 1/E², where Switch's is 1. So its factor is E² times as large.
GSHARD = partial(gshard.route, capacity_factor=EXPERTS, loss_factor=FACTOR * EXPERTS**2)
ROUTERS: dict[str, Callable[[Tensor, Tensor], Route]] = {  # given the weights of the noise, and the biases
    "Switch, without a loss": lambda noise, bias: partial(switch.route, capacity_factor=EXPERTS, loss_factor=0.0),
    "Switch": lambda noise, bias: SWITCH,
    "Switch, with z-loss": lambda noise, bias: with_z_loss(SWITCH),
    "GShard": lambda noise, bias: GSHARD,
    "noisy top-k": lambda noise, bias: partial(noisy_top_k.route, noise_weight=noise),
    "expert choice": lambda noise, bias: expert_choice.route,
    "bias-balanced": lambda noise, bias: partial(bias_balanced.route, bias=bias),
}


def batches(steps: int) -> list[Tensor]:
    """The tokens of each step, [1, tokens, hidden]: kind j is drawn with a probability that falls as 1/(j + 1)."""
    generator = torch.Generator().manual_seed(1)
    centers = torch.randn(KINDS, HIDDEN, generator=generator)
    frequency = 1 / torch.arange(1.0, KINDS + 1)
    kinds = torch.multinomial(frequency, steps * TOKENS, replacement=True, generator=generator)
    x = centers[kinds] + torch.randn(steps * TOKENS, HIDDEN, generator=generator)
    return list(x.view(steps, 1, TOKENS, HIDDEN))


def busiest_over_mean(name: str, steps: int = 300) -> list[float]:
    """Train with one of `ROUTERS` by Adam; returns, for each step, the largest load of an expert over the mean load.

    The process group must exist, of one rank at least; all of its ranks train on the same tokens.
    """
    torch.manual_seed(0)  # all routers begin with the same experts and the same W_g
    router = nn.Linear(HIDDEN, EXPERTS, bias=False)
    experts = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN)) for _ in range(EXPERTS)]
    noise_weight, bias = nn.Parameter(torch.zeros(EXPERTS, HIDDEN)), torch.zeros(EXPERTS)
    choose, last = ROUTERS[name](noise_weight, bias), {}

    def route(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last["chosen"], gates, loss = choose(x, weight)
        return last["chosen"], gates, loss

    layer = MoELayer(router, experts, route)
    teacher = torch.randn(2, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(2)) / HIDDEN**0.5
    optimizer, ratios = torch.optim.Adam([*layer.parameters(), noise_weight], lr=0.01), []
    for x in batches(steps):
        target = F.gelu(x @ teacher[0]) @ teacher[1]
        loss = F.mse_loss(x + layer(x), x + target) + layer.auxiliary_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chosen = last["chosen"]
        load = torch.bincount(chosen[chosen >= 0], minlength=EXPERTS)
        if name == "bias-balanced":
            load = bias_balanced.update(bias, chosen, SPEED)
        ratios.append((load.max() / load.double().mean()).item())
    return ratios
