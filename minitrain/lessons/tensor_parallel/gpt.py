"""A whole GPT over the ranks: what a step sends, what a rank holds, and that it trains as one device does."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import model_states
from minitrain.costs import tensor_parallel as costs
from minitrain.costs import vocabulary as vocabulary_costs
from minitrain.costs.communication import ring_all_reduce
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
    """Trains a small GPT, cut over the ranks; the table shows all-reduces, bytes, and one device's loss and weights."""
    world.figure(lambda: pictures.weights(world.size))
    rows, n, layers, hidden = Rows("Shoeybi et al. 2019, §3"), world.size, 3, HEAD * world.size  # a head on each rank
    config = GPTConfig(VOCABULARY, SEQ, layers, hidden, n, dropout=DROPOUT, attention="plain")
    start = GPT(config, seed=0).to(world.device)
    counter_rng.set_position(0, 0)
    ledgers = {}
    for collectives in (native, ring):
        gpt = copy.deepcopy(start)
        parallelize(gpt, Comm(collectives=collectives))
        with Ledger() as forward:
            _, loss = gpt(*tokens(world, 0))
        with Ledger() as backward:
            loss.backward()
        ledgers[collectives] = {"forward": forward, "backward": backward}
    each = ring_all_reduce(BATCH * SEQ * hidden, 4, n, world.rank).bytes
    more = {"forward": vocabulary_costs.loss_traffic(BATCH * SEQ, n, world.rank).bytes, "backward": 0}
    formula = "(2L+1)(2S − cᵣ − cᵣ₊₁) ≈ (2L+1) · 2(n−1)/n · S"
    for way, calls in costs.all_reduces(layers)._asdict().items():
        what = "all-reduces: two per layer, one for an end, forward and backward alike"
        rows.add(what, "2L + 1", calls + 1, ledgers[native][way].calls("all_reduce"), "1", case=way)
        what, predicted = f"bytes sent by this rank, {way}, S = 4bsh", (calls + 1) * each + more[way]
        rows.add(what, formula + ", + (n−1)·12T" * bool(more[way]), predicted, ledgers[ring][way].sent)

    layer = costs.layer_parameters(hidden, n, n)
    ends = vocabulary_costs.table_bytes(VOCABULARY, hidden, n) + 4 * (SEQ * hidden + 2 * hidden)
    what, formula = "bytes of parameters on this rank", "4(L(12h²/n + 7h/n + 6h) + V'h/n + sh + 2h)"
    rows.add(what, formula, 4 * layers * layer + ends, model_states(gpt)["parameters"])
    what = "loss, gradients, and weights after 5 steps of SGD: distance from one device's, float64"
    one_device, gpt = start.double(), copy.deepcopy(start)
    parallelize(gpt)
    for case, (ours, theirs) in trained(gpt, one_device, lambda step: tokens(world, step), STEPS).items():
        rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, case)

    plain = GPT(replace(config, dropout=0.0), seed=0).to(world.device).double()
    divided = copy.deepcopy(plain)
    small.parallelize(divided)
    inputs, targets = tokens(world, 0)
    # The full form's loss ignores targets of −100; the small form's takes tokens only.
    losses = [model(inputs, targets.clamp(min=0))[1] for model in (divided, plain)]
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
    """A step's inputs and targets, one of which is ignored; the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randint(VOCABULARY, (2, BATCH, SEQ), generator=generator).to(world.device)
    targets[0, 0] = -100
    return inputs, targets
