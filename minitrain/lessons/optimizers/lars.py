"""The lesson of `minitrain.optimizers.lars`: the paper's formulas, what the ratio does, and norms of divided layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.optimizers import by_hand, common
from minitrain.optimizers.lars import LARS

PAPER = "You et al. 2017"


def demo(world: World, lr: float = 0.5, eta: float = 0.2, momentum: float = 0.8, decay: float = 0.3) -> list[Claim]:
    """Steps a 2 × 3 matrix and some layers with LARS; the table shows formulas, scales, bytes, and ZeRO-1.

    Args:
        lr: γ, the global learning rate.
        eta: η, how far a layer trusts its step.
        momentum: m.
        decay: β, the weight decay.
    """
    make = partial(LARS, lr=lr, momentum=momentum, weight_decay=decay, eta=eta)
    rates = [lr, lr / 2, lr / 4]
    falling = by_hand.lars(common.THETA, common.GRADIENTS, rates, momentum, decay, eta)
    constant = by_hand.lars(common.THETA, common.GRADIENTS, [lr] * 3, momentum, decay, eta)
    cases = {
        "γ constant": (common.three_steps(world, make), constant),
        "γ halved in each step": (common.three_steps(world, partial(Falling, make)), falling),
    }
    bare = partial(make, weight_decay=0.0)
    claims = [
        common.like_the_paper(cases, "w − v, v = mv + γλ(g + βw)", f"{PAPER}, algorithm 1"),
        common.held(world, make, costs.lars, "wE", f"{PAPER}, algorithm 1"),
        common.scale_invariant(world, bare, f"{PAPER}, §4"),
        relative_step(world, bare, lr * eta),
        *common.by_layer(world, make, "derived"),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of a layer of 262,144 parameters"):
        optimizer.step()
    return claims


class Falling:
    """An optimizer whose rate is halved after each step."""

    def __init__(self, make: common.Make, parameters: list[torch.Tensor]):
        self.optimizer: Any = make(parameters)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.lr /= 2


def relative_step(world: World, make: common.Make, predicted: float) -> Claim:
    """The claim on the length of the first step over the norm of the weights."""
    theta = torch.tensor(common.THETA, dtype=torch.float64, device=world.device)
    first = common.three_steps(world, make)[0]
    return Claim(
        "length of a layer's first step over the norm of its weights, λ = 0",
        "γη",
        predicted,
        float((first - theta).norm() / theta.norm()),
        source=f"{PAPER}, §4",
        how="compared",
        absolute=common.bound(1, 6),
    )
