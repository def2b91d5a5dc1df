"""The lesson of `minitrain.mixture_of_experts.z_loss`: its value, its gradient by hand, and how fast logits shrink."""

from __future__ import annotations

import math

import torch

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts.z_loss import z_loss


def demo(world: World) -> list[Claim]:
    """Penalizes large logits; the table shows the loss, its gradient, and how logits shrink."""
    experts, tokens, factor = 8, 12, 0.001
    rows, exact = Rows("Zoph et al. 2022, equation 5"), {"how": "compared", "tolerance": lesson.EXACT}
    logits = (2 * lesson.random_scores(world, tokens, experts)).requires_grad_()
    predicted, loss = costs.z_loss(factor, logits.tolist()), z_loss(logits, factor)
    rows.add("z-loss of random logits", "α · 1/T · Σ z²", predicted, loss.item(), "1", **exact)

    (found,) = torch.autograd.grad(loss, logits)
    by_hand = [[costs.z_loss_gradient(factor, row, e, tokens) for e in range(experts)] for row in logits.tolist()]
    what, formula = "largest difference of autograd's gradient from the one by hand", "α · 2z/T · pᵢ, to 10⁻¹²"
    rows.near(what, found.cpu(), torch.tensor(by_hand, dtype=torch.float64), lesson.EXACT, formula, ROUNDING)

    # Each of a token's equal logits loses rate · 2z/E in a step, and z as much as they all do.
    steps, rate = 20, 0.5
    equal = torch.full((1, experts), 100.0, dtype=torch.float64, device=world.device, requires_grad=True)
    optimizer = torch.optim.SGD([equal], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        z_loss(equal, 1.0).backward()
        optimizer.step()
    what = f"z of a token with equal logits of 100, after {steps} steps with a rate of {rate}"
    predicted, z = (100 + math.log(experts)) * (1 - 2 * rate / experts) ** steps, equal.logsumexp(-1).item()
    rows.add(what, "z (1 − 2η/E)ⁱ", predicted, z, "1", "derived", **exact)

    return rows.claims()
