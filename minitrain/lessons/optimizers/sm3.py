"""The lesson of `minitrain.optimizers.sm3`: both versions, their bounds, and Adagrad, which they are on vectors."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common
from minitrain.optimizers.sm3 import SM3, sm3_i, sm3_ii

PAPER = "Anil et al. 2019"


def demo(world: World, lr: float = 0.1, rows: int = 13, columns: int = 7, steps: int = 6) -> list[Claim]:
    """Steps matrices and vectors with SM3; the table shows formulas, bytes, and how the bounds cover the sums.

    Args:
        lr: η, the learning rate.
        rows: Of the matrix whose bounds are compared.
        columns: As well.
        steps: Gradients that it gets.
    """
    cases = {
        name: (
            common.three_steps(world, partial(SM3, lr=lr, version=version)),
            by_hand.sm3(common.THETA, common.GRADIENTS, lr, bounds),
        )
        for name, version, bounds in (
            ("SM3-I", sm3_i, by_hand.sm3_i_bounds),
            ("SM3-II", sm3_ii, by_hand.sm3_ii_bounds),
        )
    }
    make = partial(SM3, lr=lr)
    claims = [
        common.like_the_paper(cases, "w − η g / √ν", f"{PAPER}, SM3-I and SM3-II"),
        common.held(world, make, costs.sm3, "w(r + c); wE for a vector", PAPER, (*common.SHAPES, (3, 4, 5))),
        *covering(world, rows, columns, steps),
        like_adagrad(world, lr),
        common.on_a_flat_shard(world, make, costs.sm3, "derived"),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = make(thetas)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of a matrix of 256 × 1024"):
        optimizer.step()
    return claims


def covering(world: World, rows: int, columns: int, steps: int) -> list[Claim]:
    """Claims that Σg² ≤ ν_II ≤ ν_I, and that both inequalities are strict somewhere, so that a bound costs something.

    Equality bit by bit is not needed: all are sums of the same squares, or of larger ones, in the same order.
    """
    zeros = common.draw(world, (rows, columns), 0) * 0
    sums = zeros.clone()
    one, two = ([zeros[:, :1].clone(), zeros[:1].clone()] for _ in range(2))
    below, above, strict = 0, 0, [0, 0]
    for step in range(steps):
        g = common.draw(world, (rows, columns), step)
        sums = sums + g * g
        nu_i, nu_ii = sm3_i(one, g), sm3_ii(two, g)
        below += int((nu_ii < sums).sum())
        above += int((nu_ii > nu_i).sum())
        strict = [int((nu_ii > sums).sum()), int((nu_i > nu_ii).sum())]
    source = f"{PAPER}, on SM3-II"
    what = f"elements in {steps} steps"
    # With one row, each column has one parameter, and its sum is exact.
    least = int(min(rows, columns, steps) > 1)
    return [
        Claim(f"{what} whose ν of SM3-II is below Σg²", "Σg² ≤ ν_II", 0, below, "elements", source, key=True),
        Claim(f"{what} whose ν of SM3-II is above that of SM3-I", "ν_II ≤ ν_I", 0, above, "elements", source, key=True),
        fold(
            "elements after the last step that have Σg² < ν_II; that have ν_II < ν_I",
            {
                name: Claim("", "≥ 1", least, count, "elements", source, relation=">=")
                for name, count in zip(("Σg² < ν_II", "ν_II < ν_I"), strict, strict=True)
            },
        ),
    ]


def like_adagrad(world: World, lr: float) -> Claim:
    """The claim that on vectors SM3 is Adagrad, in both versions."""
    shapes = [(21,), (64,)]
    right = common.train(world, partial(torch.optim.Adagrad, lr=lr, eps=0.0), shapes)
    cases = {}
    for name, version in (("SM3-I", sm3_i), ("SM3-II", sm3_ii)):
        found = common.train(world, partial(SM3, lr=lr, version=version), shapes)
        difference = common.largest_difference(found, right)
        source, most = f"{PAPER}; torch.optim.Adagrad", common.bound(5)
        cases[name] = Claim("", "ν = Σg²", 0, difference, source=source, how="compared", absolute=most)
    return fold("vectors: largest difference from torch.optim.Adagrad after five steps", cases)
