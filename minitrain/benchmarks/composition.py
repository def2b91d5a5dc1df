"""The trainer's step in each layout that the ranks allow, against torch's DDP of the same model on the same ranks.

On CPUs ranks share cores, so the comparison there is of the work done, as CPU time of all ranks together: what a layout
computes twice (tensor-parallel ranks all have the norms), packs, and sends. On one GPU it is GPT-2 in bfloat16, with
and without `torch.compile`, against the same model in plain PyTorch with autocast; tokens per second and model FLOP
utilisation follow from the seconds, and are printed by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.composition.model import make_config
from minitrain.composition.settings import Layout, Model, Settings, Steps, problem
from minitrain.data.text import Samples, Text, share
from minitrain.models.gpt import GPT
from minitrain.train import build, train_step

CPU = Model(preset="tiny", positions=128)
GPU = Model(preset="gpt2")


def measure(world: World, model: Model | None = None, batch: int = 16, repeats: int = 9) -> list[Comparison]:
    """Compare steps: forward, backward, sums over ranks, clipping, AdamW.

    Args:
        world: This rank.
        model: The GPT; None: tiny on CPUs, gpt2 on GPUs.
        batch: Sequences in a step, over all ranks.
        repeats: Steps of each.
    """
    gpu = world.device.type == "cuda"
    model = model or (GPU if gpu else CPU)
    steps = Steps(batch=batch, dtype="bfloat16" if gpu else "float32", warmup=0)
    samples = Samples(Text.load().training, model.sizes.positions)
    ways: dict[str, Callable[[], object]] = {"DDP": _plain(world, _gpt(world, model, steps), steps, samples)}
    for name, settings in _settings(world.size, model, steps).items():
        ways[name] = _ours(world, settings, samples)
    if gpu:
        ways["compiled DDP"] = _plain(world, _gpt(world, model, steps), replace(steps, compile=True), samples)
    medians = interleaved(world, ways, repeats, warmups=3)
    rows = []
    for name, ours in medians.items():
        if "DDP" in name:
            continue
        compiled = "compiled" in name
        theirs = medians["compiled DDP" if compiled else "DDP"]
        plain = "plain PyTorch" if world.size == 1 else f"DDP ({world.backend})"
        what = f"a step of {model.preset}, {batch} sequences, {world.size} ranks, {name}, "
        against = f"compiled {plain}" if compiled else plain
        rows.append(Comparison(what + "CPU time", ours.cpu, theirs.cpu, against, speed=False))
        rows.append(Comparison(what + "wall clock", ours.wall, theirs.wall, against))
    return rows


def _settings(ranks: int, model: Model, steps: Steps) -> dict[str, Settings]:
    """The layouts to compare, by name: one axis each, two, and each with what is usually added to it."""
    chosen = {
        f"dp{ranks}": Layout(dp=ranks),
        f"dp{ranks}, ZeRO 1": Layout(dp=ranks, zero=1),
        f"dp{ranks}, ZeRO 3": Layout(dp=ranks, zero=3),
        f"tp{ranks}": Layout(tp=ranks),
        f"tp{ranks}, sequence parallel": Layout(tp=ranks, sequence_parallel=True),
        f"pp{ranks}": Layout(pp=ranks, microbatches=ranks),
    }
    if ranks == 1:
        chosen = {"one device": Layout()}
    elif ranks % 2 == 0 and ranks > 2:
        half = ranks // 2
        chosen[f"dp{half}×tp2"] = Layout(dp=half, tp=2)
        chosen[f"dp{half}×pp2"] = Layout(dp=half, pp=2, microbatches=4)
        chosen[f"pp2×tp{half}"] = Layout(pp=2, tp=half, microbatches=4)
    fit = {name: Settings(model, layout, steps) for name, layout in chosen.items()}
    fit = {name: each for name, each in fit.items() if problem(model, each.layout, steps, ranks) is None}
    if steps.dtype == "bfloat16":
        compiled = replace(steps, compile=True)
        first = next(iter(fit))
        fit[f"{first}, compiled"] = replace(fit[first], steps=compiled)
    return fit


def _ours(world: World, settings: Settings, samples: Samples) -> Callable[[], object]:
    training = build(settings, world.device)
    return lambda: train_step(training, 0, 0, samples)


def _gpt(world: World, model: Model, steps: Steps) -> GPT:
    return GPT(make_config(model), seed=steps.seed).to(world.device)


def _plain(world: World, gpt: nn.Module, steps: Steps, samples: Samples) -> Callable[[], object]:
    """The same step as one would write it with torch's DDP, or on one rank without it."""
    if steps.compile:
        gpt.compile()
    if world.size > 1:
        gpt = DistributedDataParallel(gpt)
    decayed = [p for p in gpt.parameters() if p.dim() >= 2]
    others = [p for p in gpt.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": steps.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=steps.lr, betas=(0.9, 0.95))
    mine = share(0, steps.batch, world.rank, world.size)

    def step() -> None:
        inputs, targets = (part.to(world.device) for part in samples.take(mine))
        with torch.autocast(world.device.type, torch.bfloat16, enabled=steps.dtype == "bfloat16"):
            _, loss = gpt(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), steps.clip)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # as the trainer does, which looks at each step's loss

    return step
