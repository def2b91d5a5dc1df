"""The lesson of `minitrain.mixture_of_experts.z_loss`: its value, its gradient by hand, and how fast logits shrink."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import switch
from minitrain.mixture_of_experts.z_loss import with_z_loss, z_loss

ZOPH = "Zoph et al. 2022, equation 5"


def demo(world: World, experts: int = 8, tokens: int = 12, factor: float = 0.001, shift: float = 3.0) -> list[Claim]:
    """Penalises large logits; the table shows the loss, its gradient, and what it leaves alone.

    Args:
        experts: Number of experts.
        tokens: Tokens of this rank.
        factor: α.
        shift: What is added to all logits of the eight tokens, whose exponentials sum to 1 without it.
    """
    logits = 2 * lesson.random_scores(world, tokens, experts, seed=world.rank)
    return [
        *as_key(value(world, logits, factor, shift), gradient(logits, factor), shrinking(world, experts)),
        *as_key(only_the_loss(world, factor, shift)),
    ]


def value(world: World, logits: Tensor, factor: float, shift: float) -> Claim:
    """The claim on the loss: of random logits, and of the eight tokens, where z is the shift."""
    cases = {
        "random logits": (costs.z_loss(factor, logits.tolist()), logits),
        "z = shift for each token": (factor * shift**2, lesson.eight_tokens(world) + shift),
    }
    made = {
        name: Claim(
            "", "α · 1/T · Σ z²", wanted, z_loss(each, factor).item(), "1", ZOPH, "compared", tolerance=lesson.EXACT
        )
        for name, (wanted, each) in cases.items()
    }
    return fold("z-loss, of random logits, and of tokens whose exponentials sum to e^shift", made)


def gradient(logits: Tensor, factor: float) -> Claim:
    """The claim on the derivative by each logit."""
    leaf = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(z_loss(leaf, factor), leaf)
    wanted = [
        [costs.z_loss_gradient(factor, row, expert, len(logits)) for expert in range(len(row))]
        for row in logits.tolist()
    ]
    apart = (found.cpu() - torch.tensor(wanted, dtype=torch.float64)).abs().max().item()
    what = "largest difference of autograd's gradient from the one by hand"
    return Claim(what, "α · 2z/T · pᵢ, to 10⁻¹²", lesson.EXACT, apart, "1", "derived", "compared", "<=")


def shrinking(world: World, experts: int, steps: int = 20, rate: float = 0.5) -> Claim:
    """The claim on z of one token with equal logits, after steps of gradient descent on the loss alone (α = 1).

    Each logit loses rate · 2z/E in a step, and z as much as they all do; so z is multiplied by 1 − 2 · rate/E.
    """
    logits = torch.full((1, experts), 100.0, dtype=torch.float64, device=world.device, requires_grad=True)
    for _ in range(steps):
        (found,) = torch.autograd.grad(z_loss(logits, 1.0), logits)
        with torch.no_grad():
            logits -= rate * found
    wanted = (100 + math.log(experts)) * (1 - 2 * rate / experts) ** steps
    what = f"z of a token with equal logits of 100, after {steps} steps with a rate of {rate}"
    measured = logits.detach().logsumexp(-1).item()
    return Claim(what, "z (1 − 2η/E)ⁱ", wanted, measured, "1", "derived", "compared", tolerance=lesson.EXACT)


def only_the_loss(world: World, factor: float, shift: float) -> Claim:
    """The claim that a router with the z-loss chooses as before, and that its loss grows by the z-loss."""
    x = lesson.eight_tokens(world) + shift
    weight = torch.eye(4, dtype=torch.float64, device=world.device)
    chosen, gates, loss = switch.route(x, weight)
    others, their_gates, more = with_z_loss(switch.route, factor)(x, weight)
    same = int((chosen != others).sum() + (gates != their_gates).sum())
    grown, what = (more - loss).item(), "Switch with it: choices and gates that change, and what the loss grows by"
    return fold(
        what,
        {
            "loss": Claim("", "α · shift²", factor * shift**2, grown, "1", ZOPH, "compared", tolerance=lesson.EXACT),
            "choices and gates": Claim("", "0", 0, same, "1", ZOPH, "compared"),
        },
    )
