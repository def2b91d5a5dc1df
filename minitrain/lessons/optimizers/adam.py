"""The lesson of `minitrain.optimizers.adam`: torch's Adam, ZeRO-1, and the bytes of all seven optimizers."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import optimizers as costs
from minitrain.lessons.optimizers import common
from minitrain.lessons.pictures import optimizers as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.lars import LARS
from minitrain.optimizers.muon import Muon
from minitrain.optimizers.sm3 import SM3
from minitrain.zero.stage1 import Zero1


def demo(world: World) -> list[Claim]:
    """Steps some tensors with Adam; the table shows torch's Adam, bytes, and ZeRO-1.

    The picture: what each optimizer of this chapter keeps per parameter of a GPT.
    """
    rows, make = Rows("Kingma & Ba 2015, algorithm 1"), partial(Adam, lr=0.1)
    what, source = "five steps: largest difference from torch.optim.Adam", "torch.optim.Adam"
    # As usual; then other means, and an ε that matters.
    for betas, eps in (((0.9, 0.999), 1e-8), ((0.5, 0.7), 0.3)):
        how = {"lr": 0.1, "betas": betas, "eps": eps}
        ours, theirs = (common.train(world, partial(each, **how)) for each in (Adam, torch.optim.Adam))
        rows.near(what, ours, theirs, common.bound(5), "θ − α m̂ / (√v̂ + ε)", source, f"β = {betas}, ε = {eps}")
    common.held(rows, world, make, costs.adam, "2wE")
    run = common.under_zero1(world, lambda module: Zero1(module, make), make)
    what = "elements that differ after three steps under ZeRO-1 from those on one device"
    rows.equal(what, run.parameters, run.right, "θ_sharded = θ")

    gpt = GPT(GPTConfig(100, 32, layers=2, hidden=64, heads=2), seed=0).to(world.device)
    measured, predicted = measured_on(gpt), costs.per_parameter([p.shape for p in gpt.parameters()])
    what = f"bytes of states per parameter of a GPT: {', '.join(predicted)}"
    for name, each in predicted.items():
        rows.add(what, "Σ states / ΣE", each, measured[name], "B", "Rajbhandari et al. 2020, §3.1; derived", case=name)
    world.figure(lambda: pictures.states(measured))
    return rows.claims()


def measured_on(module: nn.Module) -> dict[str, float]:
    """Bytes of states per parameter after a step, by optimizer; Muon leaves all but matrices to Adam."""
    measured = {}
    for kind in (Adam, LAMB, LARS, Muon, Adam8bit, Adafactor, SM3):
        thetas = [*copy.deepcopy(module).parameters()]
        for theta in thetas:
            theta.grad = torch.ones_like(theta)
        optimizers = [kind([theta for theta in thetas if kind is not Muon or theta.dim() == 2], lr=0.1)]
        optimizers += [Adam([theta for theta in thetas if theta.dim() != 2])] if kind is Muon else []
        for each in optimizers:
            each.step()
        name = "8-bit Adam" if kind is Adam8bit else kind.__name__
        measured[name] = storage_bytes(common.tensors(optimizers)) / sum(theta.numel() for theta in thetas)
    return measured
