"""The lesson of `minitrain.roofline.calculator`: a small GPT on the ranks computes and holds what is calculated."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import SavedActivations, World
from minitrain.comm.memory import storage_bytes
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT
from minitrain.recomputation.checkpoint import recompute
from minitrain.roofline import calculator
from minitrain.roofline.calculator import Device, Model, Run
from minitrain.tensor_parallel.full.parallelize import parallelize
from minitrain.zero.stage1 import Zero1
from minitrain.zero.stage2 import Zero2
from minitrain.zero.stage3 import Zero3

NARAYANAN, KAPLAN = "Narayanan et al. 2021", "Kaplan et al. 2020, §2.1"
BATCH, SEQ = 2, 8  # a rank computes so many sequences at once
FLOAT32 = {"item": 4, "states": 8}


def demo(world: World) -> list[Claim]:
    """Runs steps of a small GPT in several layouts; the table shows operations and bytes, calculated before."""
    rows, n = Rows("derived"), world.size
    model = Model(layers=2 * n, hidden=16 * n, vocabulary=12 * n, seq=SEQ)
    tokens = torch.arange(BATCH * SEQ, device=world.device).view(BATCH, SEQ) % model.vocabulary
    with FlopCounterMode(display=False) as counter:
        gpt_of(world, model)(tokens, tokens)[1].backward()
    what, found = "operations of a step of a GPT, as torch counts them", counter.get_total_flops()
    rows.add(what, "6T(12Lh² + Vh) + 12LTsh", calculator.flops(model, BATCH), found, "FLOP", KAPLAN)

    untied = model._replace(tied=False)  # stage 3's blocks share no parameter
    for stage in range(4):
        predicted = calculator.held(untied, Run(n * BATCH, data=n, zero=stage, **FLOAT32))
        for kind, found in held(gpt_of(world, untied), stage, tokens).items():
            what = "bytes of weights, gradients and Adam's states on a rank, ZeRO's stages 0 to 3"
            formula, source, case = "4Ψ, 4Ψ, 8Ψ, or 1/n of it", "Rajbhandari et al. 2020, §5", f"stage {stage}, {kind}"
            rows.add(what, formula, predicted[kind], found, "B", source, case=case)

    for case, run in {"one rank": Run(BATCH), "t": Run(BATCH, tensor=n), "again": Run(BATCH, recompute=True)}.items():
        what = "bytes that the blocks keep for backward; divided by tensor parallelism; with full recomputation"
        predicted = calculator.held(model, run._replace(**FLOAT32))["activations"]
        # What the calculator leaves out: two numbers per token and norm, and one per token and head, which a GPU pads.
        each = SEQ * (4 + n) + (world.device.type != "cpu") * 64 * n
        small = 0 if run.recompute else 4 * model.layers * BATCH * each
        source, found = "Korthikanti et al. 2022, §4", kept(gpt_of(world, model, "sdpa"), run)
        rows.add(what, "4L(4 + 12/t)bsh", predicted, found, "B", source, case=case, absolute=small)

    sizes = Model(96, 12288, 51200, 2048)
    run, device = Run(3072, data=1024, recompute=True), Device(312e12, math.inf, 140 / 312)
    days = calculator.days(sizes, run, device, tokens=300e9)
    # The paper leaves out attention, s/6h of the operations.
    what, source, attention = "days to train 175 billion parameters", f"{NARAYANAN}, §5.1", sizes.seq / 6 / sizes.hidden
    rows.add(what, "8TN/nX", days, 34, "days", source, how="published", tolerance=attention)
    return rows.claims()


def gpt_of(world: World, model: Model, attention: AttentionKind = "plain") -> GPT:
    """As many heads as ranks."""
    sizes = model.vocabulary, SEQ, model.layers, model.hidden, world.size
    return GPT(GPTConfig(*sizes, tied=model.tied, attention=attention), seed=0).to(world.device)


def held(gpt: GPT, stage: int, tokens: Tensor) -> dict[str, int]:
    """Bytes after a step by kind; not counted are Adam's counters and the shard of the mean that stage 1 makes."""
    chain = nn.Sequential(gpt.embedding, *gpt.blocks, nn.Sequential(gpt.norm, gpt.head))
    zero: Any = (lambda module, _: module, Zero1, Zero2, Zero3)[stage](chain, torch.optim.AdamW)
    optimizer = torch.optim.AdamW(chain.parameters()) if stage == 0 else zero.optimizer
    gpt.loss(zero(tokens), tokens).backward()
    if stage in (1, 2):
        zero.synchronize()
    optimizer.step()
    shards, everything = optimizer.param_groups[0]["params"], [*chain.parameters()]
    adam = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return {
        "weights": storage_bytes(shards if stage > 2 else everything),
        "gradients": storage_bytes(each.grad for each in (shards if stage > 1 else everything)),
        "optimizer states": storage_bytes(adam),
    }


def kept(gpt: GPT, run: Run) -> int:
    """Bytes that autograd keeps of the blocks' forward."""
    if run.recompute:
        recompute(gpt.blocks)
    if run.tensor > 1:
        parallelize(gpt)
    # Equal on all ranks, as tensor parallelism wants it.
    x = torch.ones(BATCH, SEQ, gpt.config.hidden, device=gpt.head.weight.device, requires_grad=True)
    with SavedActivations(gpt) as saved:
        nn.Sequential(*gpt.blocks)(x)
    return saved.bytes
