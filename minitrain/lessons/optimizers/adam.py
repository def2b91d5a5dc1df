"""The lesson of `minitrain.optimizers.adam`: the paper's formulas, torch's Adam, the first step, and ZeRO-1."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import optimizers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.optimizers import by_hand, common, on_shards
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.lars import LARS
from minitrain.optimizers.muon import Muon
from minitrain.optimizers.sm3 import SM3

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Kingma & Ba 2015"


def demo(world: World, lr: float = 0.1) -> list[Claim]:
    """Steps a 2 × 3 matrix and some tensors with Adam; the table shows formulas, torch's Adam, bytes, and ZeRO-1.

    The picture: what each optimizer of this chapter keeps per parameter of a GPT.

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
        per_parameter(world),
        on_shards.collectives_of_their_own(world),
        on_shards.refused(world),
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


def per_parameter(world: World) -> Claim:
    """The claim on the bytes of states of all seven optimizers, for all parameters of a small GPT."""
    gpt = GPT(GPTConfig(100, 32, layers=2, hidden=64, heads=2), seed=0).to(world.device)
    shapes = [p.shape for p in gpt.parameters()]
    measured, cases = measured_on(gpt), {}
    for name, predicted in costs.per_parameter(shapes).items():
        claim = Claim("", "Σ states / ΣE", predicted, measured[name], "B", "Rajbhandari et al. 2020, §3.1; derived")
        cases[name] = claim
    world.figure(lambda: picture(measured))
    return fold(f"bytes of states per parameter of a GPT: {', '.join(cases)}", cases, key=True)


def measured_on(module: torch.nn.Module) -> dict[str, float]:
    """Bytes of states per parameter after a step, by optimizer; Muon leaves all but matrices to Adam."""
    thetas = [p.detach().clone() for p in module.parameters()]
    for theta in thetas:
        theta.grad = torch.ones_like(theta)
    matrices, others = ([theta for theta in thetas if (theta.dim() == 2) == wanted] for wanted in (True, False))
    made = {
        "Adam": [Adam(thetas)],
        "LAMB": [LAMB(thetas)],
        "LARS": [LARS(thetas, lr=0.1)],
        "Muon": [Muon(matrices), Adam(others)],
        "8-bit Adam": [Adam8bit(thetas)],
        "Adafactor": [Adafactor(thetas)],
        "SM3": [SM3(thetas)],
    }
    for optimizers in made.values():
        for each in optimizers:
            each.step()
    elements = sum(theta.numel() for theta in thetas)
    held = {name: [*common.tensors(optimizers)] for name, optimizers in made.items()}
    return {name: storage_bytes(states) / elements for name, states in held.items()}


def picture(measured: dict[str, float]) -> Figure:
    """Bytes of states per parameter, one bar for each optimizer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(measured), list(measured.values()), color="#56B4E9")  # as in the bar of memory
    axes.bar_label(bars, [f"{each:.2f}" for each in measured.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 9)
    axes.set_xlabel("bytes of optimizer states per parameter of a small GPT, measured")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
