"""The lesson of `minitrain.optimizers.scaling`: what each rule keeps, over all batches that can be drawn."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.scaling import linear, square_root

EXAMPLES = (-3.0, 1.0, 2.0, 8.0)  # derivatives of four examples: of mean 2 and variance 15.5


def demo(world: World) -> list[Claim]:
    """Steps with batches k times as large, over all batches; the table shows what each scaling rule keeps."""
    # The rate of a batch of one example is a power of two; √k is exact, and k + 1 is odd.
    rows, lr, k = Rows("Krizhevsky 2014"), 0.125, 4
    batches = torch.tensor([*product(EXAMPLES, repeat=k)], dtype=torch.float64, device=world.device)  # (4ᵏ, k)
    small = -lr * batches  # a step for each example
    steps = -linear(lr, k, 1) * batches.mean(1)
    what = "SGD, linear loss: batches whose one step at kα ends elsewhere than k steps at α"
    elsewhere = int((steps != small.sum(1)).sum())
    rows.add(what, "kα ḡ = Σ α gᵢ", 0, elsewhere, "batches", "Goyal et al. 2017, §2.1", how="compared")
    for name, rule, formula, rate in (("linear", linear, "k", k), ("square-root", square_root, "1", k**0.5)):
        steps = -rule(lr, k, 1) * batches.mean(1)
        what = f"SGD: variance of one step of the large batch, {name} rule, over that of one step of the small batch"
        measured = float(steps.var(correction=0) / small[:, 0].var(correction=0))
        rows.add(what, formula, costs.scaled_variance(k, rate), measured, "1", how="compared")

    # Adam with β = 0 and ε = 0, whose step is ±α, on gradients of ±1: all draws at once, one per element, and an odd
    # number of examples, so that no mean gradient is 0.
    draws = torch.tensor([*product((-1.0, 1.0), repeat=k + 1)], dtype=torch.float64, device=world.device)
    far = moved([*draws.unbind(1)], lr).square().mean()
    what = "Adam's direction without means, gradients of mean 0: mean square of one step over that of k + 1 steps"
    for case, rule, formula, predicted in (("square root", square_root, "1", 1), ("linear", linear, "k + 1", k + 1)):
        found = float(moved([draws.mean(1)], rule(lr, k + 1, 1)).square().mean() / far)
        # The root of k + 1, the step, its square and the ratio are rounded: fewer than 2³ units of 2⁻⁵³, as is the sum.
        near, source = 2.0**-50, "Malladi et al. 2022"
        rows.add(what, formula, predicted, found, "1", source, case=case, how="compared", tolerance=near)
    return rows.claims()


def moved(gradients: list[Tensor], lr: float) -> Tensor:
    """How far each element has moved after a step for each gradient."""
    theta = torch.zeros_like(gradients[0])
    optimizer = Adam([theta], lr, betas=(0.0, 0.0), eps=0.0)
    for g in gradients:
        theta.grad = g.contiguous()
        optimizer.step()
    return theta
