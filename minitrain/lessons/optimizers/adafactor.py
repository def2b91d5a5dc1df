"""The lesson of `minitrain.optimizers.adafactor`: formulas, torch's, and what factoring and clipping do."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common, on_shards
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.full.adafactor import Adafactor as FullAdafactor

PAPER = "Shazeer & Stern 2018"


def demo(world: World, lr: float = 0.6) -> list[Claim]:
    """Steps matrices and vectors with Adafactor; the table shows formulas, torch's, bytes, and what clipping does.

    Args:
        lr: The largest relative step; at 0.6 the third step is bound by 1/√t instead.
    """
    cases = {}
    for name, weights, eps, d in (
        ("as in the paper", 1.0, (1e-30, 1e-3), 1.0),
        ("large ε₁ and ε₂, d = 0.5", 1e-2, (0.3, 0.2), 0.5),
    ):
        make = partial(Adafactor, lr=lr, eps=eps, d=d)
        theta = by_hand.each(lambda x, weights=weights: x * weights, common.THETA)
        for flat, kind in ((False, "matrix"), (True, "vector")):
            found = common.three_steps(world, make, weights, flat=flat)
            cases[f"{kind}, {name}"] = found, by_hand.adafactor(theta, common.GRADIENTS, lr, eps, d, not flat)
    make, theirs = partial(Adafactor, lr=lr), partial(torch.optim.Adafactor, lr=lr)
    largest = max(torch.Size(shape).numel() for shape in common.SHAPES)
    claims = [
        common.like_the_paper(cases, "X − α U / max(1, RMS(U)/d)", f"{PAPER}, algorithms 4 and 5"),
        common.held(world, make, costs.adafactor, "w(r + c); wE for a vector", f"{PAPER}, §3"),
        common.like_torch(world, make, theirs, "torch.optim.Adafactor", common.bound(5, largest)),
        rank_one(world, lr),
        clipped(world),
        common.on_a_flat_shard(world, make, costs.adafactor, "derived"),
        *full_form(world, lr),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of a matrix of 256 × 1024"):
        optimizer.step()
    return claims


def rank_one(world: World, lr: float) -> Claim:
    """The claim that nothing is lost where squares have rank one: the matrix moves as its numbers do in a vector."""
    rows, columns = common.draw(world, (5, 1), 0), common.draw(world, (1, 7), 1)
    matrix = common.draw(world, (5, 7), 2)
    vector = matrix.flatten().clone()
    # Without clipping, which would hide a factor.
    optimizers = Adafactor([matrix], lr, d=100.0), Adafactor([vector], lr, d=100.0)
    for size in (0.25, 1.0, 0.5):
        matrix.grad = size * rows * columns
        vector.grad = matrix.grad.flatten()
        for each in optimizers:
            each.step()
    return Claim(
        "squares of rank one: largest difference between factored and not factored after three steps",
        "R Cᵀ / ΣR = V",
        0,
        common.largest_difference([matrix.flatten()], [vector]),
        source=f"{PAPER}, §3",
        how="compared",
        absolute=common.bound(3, 35),
        key=True,
    )


def clipped(world: World) -> Claim:
    """The claim on the relative length of a step whose gradient is larger than the one before, clipped and not."""
    cases = {}
    for name, jump, rho, d in (("a jump", 100.0, 0.01, 0.5), ("d = 2: not reached", 1.5, 0.01, 2.0)):
        x = common.draw(world, (6,), 0)
        optimizer = Adafactor([x], rho, d=d)
        for gradient in (1.0, jump):
            before = x.clone()
            x.grad = gradient * torch.ones_like(x)
            optimizer.step()
        # V of the second step, of squares 1 and jump²; all elements alike.
        lag = jump / ((1 - 2**-0.8) + 2**-0.8 * jump**2) ** 0.5
        predicted = rho * min(lag, d)
        measured = size_of(x - before) / size_of(before)
        formula, source = "ρ · min(RMS(U), d)", f"{PAPER}, §6 and §8"
        cases[name] = Claim(
            "", formula, predicted, measured, source=source, how="compared", absolute=common.bound(2, 6)
        )
    return fold("a step over the parameters' size, after a gradient 100 times as large, d = ½; and not clipped", cases)


def full_form(world: World, lr: float) -> list[Claim]:
    """Claims on the full form, which fetches the sums of rows and columns from the other ranks.

    The bound: a sum of E squares has a relative error of at most (E + 1)u in any order, and a step is a product of at
    most five such sums and roots, so that it differs by at most 5(E + 20)u of itself. Twice that allows for what
    earlier differences add to later steps, and 2u of a parameter for each subtraction.
    """
    found = on_shards.run(world, partial(FullAdafactor, lr=lr))
    largest = max(torch.Size(shape).numel() for shape in common.SHAPES)
    most = (2 * on_shards.STEPS * found.size + 2 * 5 * (largest + 20) * found.path) * 2.0**-53
    states = sum(costs.adafactor(shape, 8) for shape in common.SHAPES) + 4
    payload = on_shards.STEPS * costs.adafactor_payload(common.SHAPES, 8)
    return [
        on_shards.equal(found, most),
        on_shards.sent(world, found, "all_reduce", payload, "w(r + c + 2); w(E + 2) for a vector", key=True),
        on_shards.states_held(found, states, "w(r + c) + 4; wE for a vector"),
    ]


def size_of(x: Tensor) -> float:
    return float(x.norm()) / x.numel() ** 0.5
