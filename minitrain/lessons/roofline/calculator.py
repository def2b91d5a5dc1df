"""The lesson of `minitrain.roofline.calculator`: a small GPT on the ranks computes, holds and sends as calculated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import Ledger, SavedActivations, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.comm.messages import all_reduce
from minitrain.lessons.roofline.machine import VirtualMachine
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import AttentionKind, GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.gpipe import step
from minitrain.recomputation.checkpoint import recompute
from minitrain.roofline import calculator
from minitrain.roofline.calculator import Device, Model, Run
from minitrain.tensor_parallel.full.parallelize import parallelize
from minitrain.zero.stage1 import Zero1
from minitrain.zero.stage2 import Zero2
from minitrain.zero.stage3 import Zero3

NARAYANAN, KAPLAN = "Narayanan et al. 2021", "Kaplan et al. 2020, §2.1"
BATCH, SEQ, MICRO_BATCHES = 2, 8, 4  # a rank computes so many sequences at once; micro-batches of the pipeline
FLOAT32 = {"item": 4, "states": 8}
SPEED = 2.0**30  # operations in a virtual second


def demo(world: World) -> list[Claim]:
    """Runs steps of a small GPT in several layouts; the table shows operations, bytes and times, calculated before."""
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

    layouts(world, rows, model)
    for sizes, devices, corpus, reached, published in (
        (Model(96, 12288, 51200, 2048), 1024, 300e9, 140e12, 34),
        (Model(128, 25600, 51200, 2048), 3072, 450e9, 163e12, 84),
    ):
        run, device = Run(3072, data=devices, recompute=True), Device(312e12, math.inf, reached / 312e12)
        what, days = "days to train 175 and 1000 billion parameters", calculator.days(sizes, run, device, corpus)
        # The paper leaves out attention, s/6h of the operations.
        more = {"how": "published", "tolerance": sizes.seq / (6 * sizes.hidden)}
        rows.add(what, "8TN/nX", days, published, "days", f"{NARAYANAN}, §5.1", case=f"{devices} GPUs", **more)
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


# ---- what is sent, and how long a step takes ----


def layouts(world: World, rows: Rows, model: Model) -> None:
    """Claim bytes and seconds of a step in three layouts; blocks alone are divided by tensors and stages."""
    n, blocks, fast, slow = world.size, model._replace(vocabulary=0), 2.0**40, 2.0**25
    data, tensor = Run(n * BATCH, data=n, **FLOAT32), Run(BATCH, tensor=n, **FLOAT32)
    stages = Run(MICRO_BATCHES * BATCH, MICRO_BATCHES, pipeline=n, **FLOAT32)
    take: dict[str, tuple[Model, Run, float, Callable[[World, VirtualMachine, GPT], None]]] = {
        "data": (model, data, slow, with_data),
        "data, hidden": (model, data, fast, with_data),
        "tensor": (blocks, tensor, slow, with_tensors),
        "pipeline": (blocks, stages, math.inf, with_stages),
    }
    for case, (sizes, run, link, a_step) in take.items():
        machine = VirtualMachine(SPEED, link)
        with Ledger() as ledger, machine:
            a_step(world, machine, gpt_of(world, model))
        sent, parts = calculator.sent(sizes, run), calculator.seconds(sizes, run, Device(SPEED, link, reached=1))
        what = "bytes that the busiest rank sends in a step: gradients, tensor parallelism, pipeline"
        formula = "2(n−1)/n · 4Ψ; 8L(t−1)/t · 4Tsh; 2 · 4Tsh"
        rows.add(what, formula, sum(sent.values()), most(world, ledger.sent), "B", f"{NARAYANAN}, §3", case=case)
        # The first gradient is ready, and the last sent, when one of L layers is through. The full form of tensor
        # parallelism computes the gradients of 7h² of 12h² weights meanwhile.
        one_layer = max(2 / 3 * parts["products"], sent["data"] / link) / sizes.layers
        slack = {"pipeline": 0.0, "tensor": parts["products"] / 3 * 7 / 12}.get(case, one_layer)
        what = "time of a step: gradients exposed and hidden, tensor parallelism, pipeline over free links"
        found, formula = most(world, machine.compute.now), "F/nX + (p−1)/m · F/nX + exposed bytes/W"
        rows.time(what, formula, sum(parts.values()), found, f"{NARAYANAN}, §2 and §3", case=case, absolute=slack)


def with_data(world: World, machine: VirtualMachine, gpt: GPT) -> None:
    handles, tokens = [], torch.zeros(BATCH, SEQ, dtype=torch.long, device=world.device)
    for parameter in gpt.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: handles.append(machine.all_reduce(p.grad)))
    gpt(tokens, tokens)[1].backward()
    for handle in handles:
        handle.wait()


def with_tensors(world: World, machine: VirtualMachine, gpt: GPT) -> None:
    parallelize(gpt, Comm(collectives=machine.network))
    nn.Sequential(*gpt.blocks)(torch.ones(BATCH, SEQ, gpt.config.hidden, device=world.device)).sum().backward()


def with_stages(world: World, machine: VirtualMachine, gpt: GPT) -> None:
    each = len(gpt.blocks) // world.size
    stage = nn.Sequential(*gpt.blocks[world.rank * each :][:each])
    micro_batches = [torch.ones(BATCH, SEQ, gpt.config.hidden, device=world.device)] * MICRO_BATCHES
    with machine.compute:  # a receiver waits until what it gets has been computed
        step(stage, micro_batches, micro_batches, nn.functional.mse_loss, micro_batches[0])


def most(world: World, value: float) -> float:
    """The largest of all ranks' values."""
    everyone = torch.tensor(float(value), dtype=torch.float64, device=world.device)
    all_reduce(everyone, op=torch.distributed.ReduceOp.MAX).wait()
    return everyone.item()
