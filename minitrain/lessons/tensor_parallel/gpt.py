"""A whole GPT over the ranks: how many all-reduces a step has, and that it trains as one device does."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.costs import tensor_parallel as costs
from minitrain.lessons.pictures import tensor_parallel as pictures
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.lessons.tensor_parallel.common import pieces, trained
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel import gpt as small
from minitrain.tensor_parallel.full.parallelize import parallelize

VOCABULARY, SEQ, BATCH, HEAD, STEPS, DROPOUT = 61, 8, 2, 8, 5, 0.1


def demo(world: World) -> list[Claim]:
    """Trains a small GPT, cut over the ranks; the table shows all-reduces, and one device's loss and weights."""
    world.figure(lambda: pictures.weights(world.size))
    rows, n, layers, hidden = Rows("Shoeybi et al. 2019, §3"), world.size, 3, HEAD * world.size  # a head on each rank
    config = GPTConfig(VOCABULARY, SEQ, layers, hidden, n, dropout=DROPOUT, attention="plain")
    start = GPT(config, seed=0).to(world.device)
    counter_rng.set_position(0, 0)
    gpt = copy.deepcopy(start)
    parallelize(gpt)
    with Ledger() as forward:
        _, loss = gpt(*tokens(world, 0))
    with Ledger() as backward:
        loss.backward()
    for way, calls, ledger in zip(costs.Ways._fields, costs.all_reduces(layers), (forward, backward), strict=True):
        what = "all-reduces: two per layer, one for an end, forward and backward alike"
        rows.add(what, "2L + 1", calls + 1, ledger.calls("all_reduce"), "1", case=way)

    what = "loss, gradients, and weights after 5 steps of SGD: distance from one device's, float64"
    one_device, gpt = start.double(), copy.deepcopy(start)
    parallelize(gpt)
    for case, (ours, theirs) in trained(gpt, one_device, partial(tokens, world), STEPS).items():
        rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, case)

    plain = GPT(replace(config, dropout=0.0), seed=0).to(world.device).double()
    divided = copy.deepcopy(plain)
    small.parallelize(divided)
    losses = [model(*tokens(world, 0))[1] for model in (divided, plain)]
    for loss in losses:
        loss.backward()
    ours, theirs = (
        [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        for loss, model in zip(losses, (divided, plain), strict=True)
    )
    theirs[1:] = pieces(theirs[1:], divided)
    what = "small form: distance of loss and gradients from one device's, float64"
    rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING)
    return rows.claims()


def tokens(world: World, step: int) -> tuple[Tensor, Tensor]:
    """A step's inputs and targets, the same on every rank."""
    drawn = torch.randint(VOCABULARY, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(step))
    inputs, targets = drawn.to(world.device)
    return inputs, targets
