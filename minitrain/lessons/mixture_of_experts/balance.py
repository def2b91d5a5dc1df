"""How evenly each router loads its experts while a layer trains: all routers, on the same tokens.

Nothing is claimed here. Tokens come in kinds, of which some are more frequent than others, and the layer learns to
map them as a fixed feed-forward layer does. What is recorded is the load of the busiest expert over the mean: 1 at
balance, E/k if all tokens choose the same k experts. No router here has a capacity, so a token's choice is never lost.
A step has few tokens, so chance keeps even a fair router a little above 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.lessons.mixture_of_experts.common import COLOURS
from minitrain.mixture_of_experts import bias_balanced, expert_choice, gshard, noisy_top_k, switch
from minitrain.mixture_of_experts.layer import MoELayer
from minitrain.mixture_of_experts.z_loss import with_z_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIDDEN, EXPERTS, KINDS, TOKENS = 16, 8, 24, 256
SPEED = 0.01  # of the biases; ten times the papers', since a run here has a few hundred steps
FACTOR = 0.1  # of auxiliary losses; 0.01 in Switch's paper, where the loss of the task is larger
SWITCH = partial(switch.route, capacity_factor=EXPERTS, loss_factor=FACTOR)


class Run:
    """One router's layer and, where it has them, the noise's weights or the biases.

    Args:
        name: One of `ROUTERS`.
    """

    def __init__(self, name: str):
        torch.manual_seed(0)  # all routers begin with the same experts and the same W_g
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        experts = [
            nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN)) for _ in range(EXPERTS)
        ]
        self.noise_weight = nn.Parameter(torch.zeros(EXPERTS, HIDDEN))
        self.bias = torch.zeros(EXPERTS)
        self.chosen = torch.zeros(0, 1, dtype=torch.long)
        self.balanced_by_bias = name == "bias-balanced"
        self.layer = MoELayer(self.router, experts, partial(self._route, ROUTERS[name]))

    def _route(self, rule: Rule, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen, gates, loss = rule(self, x, weight)
        self.chosen = chosen
        return chosen, gates, loss

    def load(self) -> list[int]:
        """Tokens of each expert in the last forward; afterwards biases, if it has any, are changed."""
        if self.balanced_by_bias:
            return bias_balanced.update(self.bias, self.chosen, SPEED).tolist()
        return torch.bincount(self.chosen[self.chosen >= 0], minlength=EXPERTS).tolist()


Rule = Callable[[Run, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
ROUTERS: dict[str, Rule] = {
    "Switch, without a loss": lambda run, x, w: switch.route(x, w, EXPERTS, 0.0),
    "Switch": lambda run, x, w: switch.route(x, w, EXPERTS, FACTOR),
    "Switch, with z-loss": lambda run, x, w: with_z_loss(SWITCH)(x, w),
    "GShard": lambda run, x, w: gshard.route(x, w, capacity_factor=EXPERTS, loss_factor=FACTOR * EXPERTS**2),
    "noisy top-k": lambda run, x, w: noisy_top_k.route(x, w, run.noise_weight),
    "expert choice": lambda run, x, w: expert_choice.route(x, w),
    "bias-balanced": lambda run, x, w: bias_balanced.route(x, w, run.bias),
}
"""At balance, GShard's loss is 1/E², where Switch's is 1. So its factor is E² times as large."""


def batches(steps: int) -> list[Tensor]:
    """The tokens of each step, [1, tokens, hidden]: kind j is drawn with a probability that falls as 1/(j + 1)."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(KINDS, HIDDEN, generator=generator)
    frequency = 1 / torch.arange(1.0, KINDS + 1)
    kinds = torch.multinomial(frequency, steps * TOKENS, replacement=True, generator=generator)
    x = centres[kinds] + torch.randn(steps * TOKENS, HIDDEN, generator=generator)
    return list(x.view(steps, 1, TOKENS, HIDDEN))


def busiest_over_mean(name: str, steps: int = 300, rate: float = 0.01) -> list[float]:
    """Train with one router; returns, for each step, the largest load of an expert over the mean load.

    The process group must exist, of one rank at least; all of its ranks train on the same tokens.

    Args:
        name: One of `ROUTERS`.
        steps: Steps of Adam.
        rate: Its learning rate.

    Raises:
        ValueError: There is no such router, or no step.
    """
    if name not in ROUTERS:
        raise ValueError(f"name={name!r} is no router; use one of {', '.join(map(repr, ROUTERS))}")
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    run = Run(name)
    generator = torch.Generator().manual_seed(2)
    teacher = torch.randn(2, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
    optimizer = torch.optim.Adam([*run.layer.parameters(), run.noise_weight], lr=rate)
    ratios = []
    for x in batches(steps):
        target = F.gelu(x @ teacher[0]) @ teacher[1]
        loss = F.mse_loss(x + run.layer(x), x + target) + run.layer.auxiliary_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        load = run.load()
        ratios.append(max(load) * len(load) / sum(load))
    return ratios


def smoothed(values: Sequence[float], width: int = 10) -> list[float]:
    """The mean of each value and the `width` − 1 before it, of fewer at the beginning."""
    parts = [values[max(0, end - width) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def picture(curves: Mapping[str, Sequence[float]]) -> Figure:
    """A curve for each router; the mean of ten steps at each point.

    Args:
        curves: Router -> `busiest_over_mean`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
        axes.plot(range(1, len(values) + 1), smoothed(values), color=colour, linewidth=1.5, label=name)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel="busiest expert's load / mean load", ylim=(0.8, None))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
