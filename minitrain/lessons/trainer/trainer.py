"""What the demo of the trainer shows: a run that was interrupted, compared with one that was not."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.train import build, train_step
from minitrain.trainer.trainer import Trainer

STEPS = 4


def demo(world: World) -> list[Claim]:
    """Interrupts and resumes runs, in the same and in another layout; the table shows that nothing else changed."""
    rows, (first, second), cut = Rows(), layouts(world.size), STEPS - 1
    deterministic = torch.are_deterministic_algorithms_enabled()
    if world.device.type != "cpu":  # on a CPU all kernels add in the same order each time
        torch.use_deterministic_algorithms(True, warn_only=True)
    with shared_folder(world) as folder:
        losses, _, whole = watch(world, settings(first, folder), STEPS)
        early, _, saved = watch(world, settings(first, folder, "cut"), cut, save=True)
        late, _, same = watch(world, settings(first, folder, "cut", resume=True), STEPS - cut)
        _, loaded, _ = watch(world, settings(second, folder, "cut", resume=True), 0)
    torch.use_deterministic_algorithms(deterministic)

    change = f"saved by {first} after {cut} of {STEPS} steps, loaded by {second}"
    rows.equal(f"{change}: elements of weights and optimizer states that changed", loaded, saved, "loaded = saved")
    what = (
        f"{first}, interrupted after {cut} of {STEPS} steps and resumed: elements and losses that differ from those of"
    )
    rows.equal(f"{what} a run in one go", [*same, early, late], [*whole, *losses.split(cut)], "resumed = in one go")
    return rows.claims()


def layouts(ranks: int) -> tuple[Layout, Layout]:
    """Data parallelism with ZeRO over all ranks, and as different a layout of as many ranks as they allow."""
    tensor = 2 if ranks % 2 == 0 else 1
    return Layout(dp=ranks, zero=1), Layout(pp=ranks // tensor, tp=tensor, microbatches=2, schedule="gpipe")


def settings(layout: Layout, folder: Path, name: str = "whole", resume: bool = False) -> Settings:
    """A small run with dropout, in float64. As positions are odd, shards of the embedding begin within a row."""
    model = Model(layers=8, hidden=16, heads=2, positions=15, dropout=0.1)
    made = Steps(steps=STEPS, batch=2 * layout.ranks, warmup=2, dtype="float64", lr=1e-2, clip=1.0)
    return Settings(model, layout, made, Run(name=name, runs=str(folder), resume=resume))


def watch(world: World, asked: Settings, steps: int, save: bool = False) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Have some steps done: their losses, and the state before and after."""
    trainer = Trainer(world, asked, tell=lambda text: None)
    trainer.begin(build(trainer.settings, trainer.world.device, trainer.instruments))
    begin = [*gathered(trainer).values()]
    for number in range(trainer.done, trainer.done + steps):
        advance(trainer, number)
    if save:
        trainer.saving.save()
    losses = torch.tensor([report.loss for report in trainer.reports], dtype=torch.float64)
    return losses, begin, [*gathered(trainer).values()]


def advance(trainer: Trainer, number: int) -> None:
    """One step of the loop in `minitrain/train.py`."""
    with trainer.measured():
        report = train_step(trainer.training, number, trainer.position, trainer.samples)
    trainer.log_evaluate_save(report)


def gathered(trainer: Trainer) -> dict[str, Tensor]:
    """The whole state of a small training as one device has it, on every rank, by name, from all ranks' pieces."""
    mine, found = [], dict[str, Tensor]()
    for name, sharded in trainer.saving.state().items():
        pieces = [(shard.tensor.detach().cpu().clone(), shard.offsets) for shard in sharded.shards]
        mine.append((name, sharded.shape, pieces))
    for name, shape, pieces in sorted(chain(*gather_objects(mine)), key=lambda each: each[0]):
        whole = found.setdefault(name, torch.full(shape, math.nan, dtype=torch.float64))
        for values, offsets in pieces:
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, values.shape, strict=True))] = values
    return found
