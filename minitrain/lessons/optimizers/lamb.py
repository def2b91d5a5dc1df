"""The lesson of `minitrain.optimizers.lamb`: the paper's formulas, what the ratio does, and norms of divided layers."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common
from minitrain.optimizers.lamb import LAMB

PAPER = "You et al. 2020"


def demo(world: World, lr: float = 0.1, decay: float = 0.3, eps: float = 0.05) -> list[Claim]:
    """Steps a 2 × 3 matrix and some layers with LAMB; the table shows formulas, scales, bytes, and ZeRO-1.

    Args:
        lr: α, the part of its norm by which a layer moves.
        decay: λ, the weight decay.
        eps: ε, large enough to matter.
    """
    make = partial(LAMB, lr=lr, eps=eps, weight_decay=decay)
    norm = by_hand.norm(common.THETA)
    cases = {}
    for name, phi in (
        ("φ(z) = z", (0.0, float("inf"))),
        ("φ(z) ≤ ‖x‖/2", (0.0, norm / 2)),
        ("φ(z) ≥ 2‖x‖", (2 * norm, 9 * norm)),
    ):
        hand = by_hand.lamb(common.THETA, common.GRADIENTS, lr, (0.9, 0.999), eps, decay, phi)
        cases[name] = common.three_steps(world, partial(make, phi=phi)), hand
    claims = [
        common.like_the_paper(cases, "x − α φ(‖x‖) (r + λx) / ‖r + λx‖", f"{PAPER}, algorithm 2"),
        common.held(world, make, costs.lamb, "2wE", f"{PAPER}, algorithm 2"),
        common.scale_invariant(world, partial(make, eps=0.0, weight_decay=0.0), f"{PAPER}, §3"),
        relative_step(world, make, lr),
        *common.by_layer(world, make, "derived"),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of a layer of 262,144 parameters"):
        optimizer.step()
    return claims


def relative_step(world: World, make: common.Make, lr: float) -> Claim:
    """The claim on the length of each step over the norm of the weights before it, weight decay included."""
    theta = torch.tensor(common.THETA, dtype=torch.float64, device=world.device)
    found, cases = [theta, *common.three_steps(world, make)], {}
    for step, (before, after) in enumerate(zip(found[:-1], found[1:], strict=True), 1):
        measured = float((after - before).norm() / before.norm())
        cases[f"step {step}"] = Claim(
            "", "α", lr, measured, source=f"{PAPER}, §3", how="compared", absolute=common.bound(step, 6)
        )
    return fold("length of a layer's step over the norm of its weights, three steps, φ(z) = z", cases)
