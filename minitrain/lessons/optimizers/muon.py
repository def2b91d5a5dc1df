"""The lesson of `minitrain.optimizers.muon`: what Newton–Schulz does to singular values, and torch's Muon."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import common, on_shards
from minitrain.lessons.optimizers.by_hand import Matrix
from minitrain.optimizers.full.muon import Muon as FullMuon
from minitrain.optimizers.muon import Muon, newton_schulz
from minitrain.roofline.flops import Flops

SOURCE = "Jordan et al. 2024"
MATRICES = ((31, 17), (17, 31), (8, 8))


def demo(world: World, lr: float = 0.1, momentum: float = 0.8, decay: float = 0.3) -> list[Claim]:
    """Steps matrices with Muon; the table shows singular values, formulas, torch's Muon, bytes and operations.

    Args:
        lr: The learning rate.
        momentum: μ.
        decay: λ, the weight decay.
    """
    make = partial(Muon, lr=lr, momentum=momentum, weight_decay=decay, dtype=torch.float64)
    tall = partial(Tall, make)
    cases = {
        "2 × 3": (common.three_steps(world, make), by_svd(world, lr, momentum, decay)),
        "3 × 2": (common.three_steps(world, tall), by_svd(world, lr, momentum, decay, 1.5**0.5)),
    }
    claims = [
        common.like_the_paper(
            cases, "θ(1 − αλ) − α√max(1, r/c) · U p⁵(S) Vᵀ", SOURCE, error(2, 3) + common.bound(3, 6)
        ),
        common.held(world, make, costs.muon, "wE", SOURCE, MATRICES),
        like_torch(world, lr),
        singular_values(world),
        near_one(world),
        operations(world),
        *full_form(world, lr),
    ]
    thetas = common.parameters(world, [(256, 1024)], torch.float32)
    optimizer = Muon(thetas, lr)
    thetas[0].grad = torch.ones_like(thetas[0])
    with world.timed("a step of a matrix of 256 × 1024"):
        optimizer.step()
    return claims


class Tall:
    """Muon of the transposed parameter, which is transposed back."""

    def __init__(self, make: common.Make, parameters: list[Tensor]):
        (self.wide,) = parameters
        self.tall = self.wide.T.clone()
        self.optimizer = make([self.tall])

    def step(self) -> None:
        assert self.wide.grad is not None
        self.tall.grad = self.wide.grad.T.clone()
        self.optimizer.step()
        self.wide.copy_(self.tall.T)


def error(rows: int, columns: int) -> float:
    """How far five steps of Newton–Schulz may be off in float64, as a Frobenius norm.

    Singular values stay below 1.21, where the polynomial's slope is at most 3.85, so that an error grows by at most so
    much in each following step: by 3.85⁴ + … + 1 ≤ 1.36 · 3.85⁴ in all. In one step there are three products with sums
    of at most c numbers, and |a|σ + |b|σ³ + |c|σ⁵ ≤ 20; r turns spectral norms into Frobenius norms.
    """
    return 1.36 * 3.85**4 * 3 * (columns + 4) * rows * 20 * 2.0**-53


def by_svd(world: World, lr: float, momentum: float, decay: float, factor: float = 1) -> list[Matrix]:
    """The example's three steps, with the singular values one by one, and the momentum as a sum over all gradients."""
    theta = torch.tensor(common.THETA, dtype=torch.float64, device=world.device)
    gradients, found = [theta.new_tensor(g) for g in common.GRADIENTS], []
    for t, g in enumerate(gradients, 1):
        b = sum((1 - momentum) * momentum ** (t - i) * each for i, each in enumerate(gradients[:t], 1))
        theta = theta * (1 - lr * decay) - lr * factor * polar((1 - momentum) * g + momentum * b)
        found.append(theta.tolist())
    return found


def polar(g: Tensor) -> Tensor:
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    after = [costs.newton_schulz(float(each)) for each in s / s.norm()]
    return u @ torch.diag(s.new_tensor(after)) @ v


def like_torch(world: World, lr: float) -> Claim:
    """The claim that torch's Muon gives the same bits in bfloat16: the same operations in the same order."""
    what, formula = "elements that differ from torch.optim.Muon's after five steps in bfloat16", "θ_ours = θ_torch"
    theirs = getattr(torch.optim, "Muon", None)
    assert theirs is not None, "torch.optim.Muon came with torch 2.9"
    found = common.train(world, partial(Muon, lr=lr), MATRICES, dtype=torch.float32)
    right = common.train(world, partial(theirs, lr=lr), MATRICES, dtype=torch.float32)
    return Claim(what, formula, 0, common.different(found, right), "elements", "torch.optim.Muon", "compared", key=True)


def singular_values(world: World) -> Claim:
    """The claim on each singular value: the polynomial, five times, of what it was over the norm."""
    cases = {}
    for shape in MATRICES:
        g = common.draw(world, shape, 0)
        s = torch.linalg.svdvals(g)
        right = [costs.newton_schulz(float(each)) for each in s / s.norm()]
        found = torch.linalg.svdvals(newton_schulz(g, dtype=torch.float64))
        difference = common.largest_difference([found], [s.new_tensor(sorted(right, reverse=True))])
        claim = Claim("", "p⁵(σ/‖G‖)", 0, difference, source=SOURCE, how="compared", absolute=error(*sorted(shape)))
        cases[f"{shape[0]} × {shape[1]}"] = claim
    return fold(
        "singular values after five steps in float64: largest difference from the polynomial's", cases, key=True
    )


def near_one(world: World) -> Claim:
    """The claim on all singular values after five steps, where they were from 0.003 of the norm on."""
    values = 1.35 ** -torch.arange(20, dtype=torch.float64, device=world.device)
    values /= values.norm()  # from 0.67 down to 0.0022, of which those below 0.003 are left out
    values = values[values >= 0.003]
    q = [torch.linalg.qr(common.draw(world, (len(values), len(values)), seed))[0] for seed in (0, 1)]
    found = torch.linalg.svdvals(newton_schulz(q[0] @ torch.diag(values) @ q[1], dtype=torch.float64))
    cases = {
        "least": Claim("", "0.68 ≤ σ ≤ 1.21", 0.68, float(found.min()), source=SOURCE, how="compared", relation=">="),
        "largest": Claim("", "0.68 ≤ σ ≤ 1.21", 1.21, float(found.max()), source=SOURCE, how="compared", relation="<="),
    }
    return fold("least singular value after five steps, 0.003 to 1 before; the largest", cases)


def operations(world: World) -> Claim:
    """The claim on the operations of five steps."""
    cases = {}
    for rows, columns in MATRICES:
        with Flops() as flops:
            newton_schulz(common.draw(world, (rows, columns), 0))
        predicted = costs.newton_schulz_flops(rows, columns)
        cases[f"{rows} × {columns}"] = Claim("", "5(4r²c + 2r³), r ≤ c", predicted, flops.total, "FLOP", SOURCE)
    return fold("operations of five steps, 31 × 17; other shapes", cases, key=True)


def full_form(world: World, lr: float) -> list[Claim]:
    """Claims on the full form, which gathers each line's update; AdamW steps the vector.

    The bound: `error` of each step's matrix, twice because both ways may be off, and 2u of a parameter for each of the
    other roundings, of which there are at most 50 in a step of Muon's or AdamW's.
    """
    make = partial(FullMuon, lr=lr, ns_dtype=torch.float64)
    found = on_shards.run(world, make, on_shards.matrices_apart)
    sizes = {True: 0, False: 0}  # elements of matrices, and of all other tensors
    for shape in common.SHAPES:
        sizes[len(shape) == 2] += torch.Size(shape).numel()
    newton = sum(error(*sorted(shape)) for shape in common.SHAPES if len(shape) == 2)
    tall = max(1, 31 / 17) ** 0.5
    most = on_shards.STEPS * (2 * lr * tall * newton + 2 * 50 * found.size * 2.0**-53)
    shards = {matrix: -(-elements // world.size) for matrix, elements in sizes.items()}
    parameters = sum(costs.zero1_traffic([elements], world.size, item=8).all_gather for elements in sizes.values())
    payload = on_shards.STEPS * (parameters + costs.muon_payload([sizes[True]], world.size, 8))
    return [
        on_shards.equal(found, most),
        on_shards.sent(world, found, "all_gather", payload, "w · padded Ψ, and again w · padded Ψ of matrices"),
        on_shards.states_held(
            found, costs.muon([shards[True]], 8) + costs.adam([shards[False]], 8) + 4, "w⌈Ψ/n⌉; 2w⌈Ψ/n⌉ + 4 of AdamW"
        ),
    ]
