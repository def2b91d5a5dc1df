"""The lesson of `minitrain.optimizers.muon`: what Newton–Schulz does to singular values, and torch's Muon."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.rows import Claim, Rows
from minitrain.optimizers.muon import Muon, newton_schulz
from minitrain.roofline.flops import Flops

MATRICES = ((31, 17), (17, 31), (8, 8))


def demo(world: World) -> list[Claim]:
    """Steps matrices with Muon; the table shows singular values, torch's Muon, bytes, and operations."""
    rows, makes = Rows("Jordan et al. 2024"), [partial(each, lr=0.1) for each in (Muon, torch.optim.Muon)]
    common.held(rows, world, makes[0], costs.muon, "wE", MATRICES)
    ours, theirs = (common.train(world, make, MATRICES, torch.float32) for make in makes)
    # The same operations in the same order.
    what = "elements that differ from torch.optim.Muon's after five steps in bfloat16"
    rows.equal(what, ours, theirs, "θ_ours = θ_torch", "torch.optim.Muon")
    for shape in MATRICES:
        g, case = common.draw(world, shape, 0), f"{shape[0]} × {shape[1]}"
        s = torch.linalg.svdvals(g)
        right = [costs.newton_schulz(float(each)) for each in s / s.norm()]
        with Flops() as flops:
            after = newton_schulz(g, dtype=torch.float64)
        what = "singular values after five steps in float64: largest difference from the polynomial's"
        found, right = torch.linalg.svdvals(after), s.new_tensor(sorted(right, reverse=True))
        rows.near(what, found, right, error(*sorted(shape)), "p⁵(σ/‖G‖)", rows.source, case)
        what = "operations of five steps, 31 × 17; other shapes"
        rows.add(what, "5(4r²c + 2r³), r ≤ c", costs.newton_schulz_flops(*shape), flops.total, "FLOP", case=case)
    return rows.claims()


def error(rows: int, columns: int) -> float:
    """How far five steps of Newton–Schulz may be off in float64, as a Frobenius norm.

    Singular values σ stay below 1.21, since aσ + bσ³ + cσ⁵ does for all σ in [0, 1.21]. There its slope is at most 4.25
    in size, which it has at 1.21, so that an error grows by at most so much in each following step: by 4.25⁴ + … + 1 ≤
    1.31 · 4.25⁴ in all. In one step there are three products with sums of at most c numbers, and |a|σ + |b|σ³ + |c|σ⁵ ≤
    20; r turns spectral norms into Frobenius norms.
    """
    return 1.31 * 4.25**4 * 3 * (columns + 4) * rows * 20 * 2.0**-53
