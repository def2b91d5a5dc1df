"""The lesson of `minitrain.optimizers.adafactor`: torch's Adafactor, and what factoring loses."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.adafactor import Adafactor


def demo(world: World) -> list[Claim]:
    """Steps matrices and vectors with Adafactor; the table shows torch's, bytes, and what factoring loses."""
    lr = 0.6  # the largest relative step; the third one is bound by 1/√t instead
    rows, make = Rows("Shazeer & Stern 2018, §3"), partial(Adafactor, lr=lr)
    common.held(rows, world, make, costs.adafactor, "w(r + c); wE for a vector")
    source, formula = "torch.optim.Adafactor", "X − α U / max(1, RMS(U)/d)"
    what, most = f"five steps: largest difference from {source}", common.bound(5, common.LARGEST)
    # As usual; then with an ε₂ larger than the tensors at first, and a d that is rarely reached.
    for eps, d in (((1e-30, 1e-3), 1.0), ((1e-30, 2.0), 1.5)):
        how = {"lr": lr, "eps": eps, "d": d}
        ours, theirs = (common.train(world, partial(each, **how)) for each in (Adafactor, torch.optim.Adafactor))
        rows.near(what, ours, theirs, most, formula, source, f"ε₂ = {eps[1]}, d = {d}")

    # Squares of rank one lose nothing: the matrix moves as its numbers do in a vector. Clipping would hide a factor.
    matrix, outer = common.draw(world, (5, 7), 2), common.draw(world, (5, 1), 0) * common.draw(world, (1, 7), 1)
    squares = [size * outer for size in (0.25, 1.0, 0.5)]
    factored = common.stepped(partial(make, d=100.0), matrix, squares)
    plain = common.stepped(partial(make, d=100.0), matrix.flatten(), [g.flatten() for g in squares])
    what = "squares of rank one: largest difference between factored and not factored after three steps"
    rows.near(what, factored[-1].flatten(), plain[-1], common.bound(3, 35), "R Cᵀ / ΣR = V", rows.source)
    return rows.claims()
