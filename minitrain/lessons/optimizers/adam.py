"""The lesson of `minitrain.optimizers.adam`: the paper's formulas, torch's Adam, the first step, and ZeRO-1."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common
from minitrain.optimizers.adam import Adam

PAPER = "Kingma & Ba 2015"


def demo(world: World, lr: float = 0.1) -> list[Claim]:
    """Steps a 2 × 3 matrix and some tensors with Adam; the table shows formulas, torch's Adam, bytes, and ZeRO-1.

    Args:
        lr: α, the learning rate.
    """
    make = partial(Adam, lr=lr)
    hand = by_hand.adam(common.THETA, common.GRADIENTS, lr, (0.9, 0.999), 1e-8)
    # Other means and an ε that matters.
    other = by_hand.adam(common.THETA, common.GRADIENTS, lr, (0.5, 0.7), 0.3)
    cases = {
        "β = 0.9, 0.999": (common.three_steps(world, make), hand),
        "β = 0.5, 0.7, ε = 0.3": (common.three_steps(world, partial(make, betas=(0.5, 0.7), eps=0.3)), other),
    }
    theirs = partial(torch.optim.Adam, lr=lr)
    claims = [
        common.like_the_paper(cases, "θ − α m̂ / (√v̂ + ε)", f"{PAPER}, algorithm 1"),
        common.held(world, make, costs.adam, "2wE", PAPER),
        common.like_torch(world, make, theirs, "torch.optim.Adam", common.bound(5)),
        first_step(world, lr),
        common.by_element(world, make, common.SHAPES, "derived"),
        *without_norms(world, make),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of 262,144 parameters"):
        optimizer.step()
    return claims


def without_norms(world: World, make: common.Make) -> list[Claim]:
    """The claim that an element-wise optimizer needs no communication of its own."""
    run = common.sharded(world, make, common.SHAPES, 2)
    return [common.traffic(world, run, common.SHAPES, 2, 0, "Rajbhandari et al. 2020, §7.2.1")]


def first_step(world: World, lr: float) -> Claim:
    """The claim that the first step has the length α, however large the gradient is."""
    theta, cases = torch.zeros(1, dtype=torch.float64, device=world.device), {}
    for size in (1e-3, 1.0, 1e3):
        parameter = theta.clone()
        parameter.grad = theta - size
        Adam([parameter], lr, eps=0.0).step()
        cases[f"g = {size}"] = Claim(
            "", "α", lr, parameter.item(), source=f"{PAPER}, §2.1", how="compared", absolute=common.bound(1)
        )
    return fold("the first step's length at ε = 0, gradients of 0.001, 1 and 1,000", cases)
