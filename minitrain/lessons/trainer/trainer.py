"""What the demo of the trainer shows: a run that was interrupted, compared with one that was not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.checkpointing.checkpoint import State
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.data.text import Batch
from minitrain.lessons.claims import Claim
from minitrain.lessons.rows import Rows, most
from minitrain.lessons.shared_folder import shared_folder
from minitrain.train import build, train_step
from minitrain.trainer.trainer import Trainer

Tensors = dict[str, Tensor]
BOUND = 1e-9  # of losses and weights in float64, as `minitrain.lessons.composition.step` derives it


def demo(world: World, steps: int = 4) -> list[Claim]:
    """Interrupts and resumes runs, in the same and in another layout; the table shows that nothing else changed.

    Args:
        steps: Of a run; half of them come before it is interrupted.
    """
    rows, (first, second), batch, half = Rows(), layouts(world.size), 2 * world.size, steps // 2
    deterministic = torch.are_deterministic_algorithms_enabled()
    if world.device.type != "cpu":  # on a CPU all kernels add in the same order each time
        torch.use_deterministic_algorithms(True, warn_only=True)
    with shared_folder(world) as folder:
        asked = settings(first, steps, folder / "whole", batch)
        cut = replace(asked, run=Run(name="cut", runs=str(folder)))
        resumed = replace(asked, run=Run(name="cut", runs=str(folder), resume=True))
        whole, before = watch(world, asked, steps), watch(world, cut, half)
        before.trainer.saving.save()
        same, other = (watch(world, replace(resumed, layout=each), steps - half) for each in (first, second))
    torch.use_deterministic_algorithms(deterministic)

    change = f"saved by {first} after {half} of {steps} steps, loaded by {second}"
    what = f"{change}: elements of weights and optimizer states that changed"
    rows.add(what, "loaded = saved", 0, unlike(before.end, other.begin), "elements", how="compared")
    again = f"{first}, interrupted after {half} of {steps} steps and resumed"
    what = f"{again}: elements and losses that differ from those of a run in one go"
    losses = sum(a != b for a, b in zip(whole.losses, before.losses + same.losses, strict=True))
    different = unlike(whole.end, same.end) + losses
    rows.add(what, "resumed = in one go", 0, different, "elements", how="compared")
    found = most([apart(whole.end, other.end), abs(whole.losses[-1] - other.losses[-1])])
    what = f"{change}: distance from a run in one go"
    rows.add(what, "10⁻⁹", BOUND, found, "1", how="compared", relation="<=")
    what = f"{again}, or in another layout: samples not taken exactly once"
    for case, after in (("resumed", same), ("in another layout", other)):
        taken = before.taken + after.taken
        wrong = sum(taken[number] != 1 for number in {*range(batch * steps), *taken})
        rows.add(what, "each once", 0, wrong, "samples", case=case)
    return rows.claims()


def layouts(ranks: int) -> tuple[Layout, Layout]:
    """Data parallelism with ZeRO over all ranks, and as different a layout of as many ranks as they allow."""
    tensor = 2 if ranks % 2 == 0 else 1
    stages = ranks // tensor
    data = 2 if stages % 4 == 0 else 1
    second = Layout(dp=data, pp=stages // data, tp=tensor, microbatches=2, schedule="gpipe")
    return Layout(dp=ranks, zero=1), second


def settings(layout: Layout, steps: int, folder: Path, batch: int) -> Settings:
    """A small run with dropout, in float64, so that another order of additions shows only far behind the point.

    Positions are odd, so that shards of the embedding begin and end in the middle of a row.
    """
    model = Model(layers=8, hidden=16, heads=2, positions=15, dropout=0.1)
    made = Steps(steps=steps, batch=batch, warmup=2, dtype="float64", lr=1e-2)
    return Settings(model, layout, made, Run(name=folder.name, runs=str(folder.parent)))


class Watched(NamedTuple):
    """Some steps of a run.

    Attributes:
        trainer: The trainer that has done them.
        losses: Of these steps.
        begin: Weights and optimizer states before them, as one device has them.
        end: The same after them.
        taken: How often the ranks have taken each sample; those of one model take it together, which counts once.
    """

    trainer: Trainer
    losses: list[float]
    begin: Tensors
    end: Tensors
    taken: Counter[int]


def watch(world: World, asked: Settings, steps: int) -> Watched:
    """Have some steps done, and look at all ranks."""
    trainer = Trainer(world, asked, tell=lambda text: None)
    training = build(trainer.settings, trainer.world.device, trainer.instruments)
    trainer.begin(training)
    place, taken, take = training.axes.place, Counter[int](), trainer.samples.take

    def counted(samples: Iterable[int]) -> Batch:
        numbers = list(samples)
        taken.update(numbers if place["pp"] == place["cp"] == place["tp"] == 0 else [])
        return take(numbers)

    trainer.samples.take = counted  # type: ignore[method-assign]
    begin = gathered(trainer)
    for number in range(trainer.done, trainer.done + steps):
        advance(trainer, number)
    losses = [report.loss for report in trainer.reports]
    return Watched(trainer, losses, begin, gathered(trainer), sum(gather_objects(taken), Counter()))


def advance(trainer: Trainer, number: int) -> None:
    """One step of the loop in `minitrain/train.py`."""
    with trainer.measured():
        report = train_step(trainer.training, number, trainer.position, trainer.samples)
    trainer.log_evaluate_save(report)


def gathered(trainer: Trainer) -> Tensors:
    """The whole state of a small training as one device has it, on every rank, from all ranks' pieces."""
    found: Tensors = {}
    for state in gather_objects(_as_sent(trainer.saving.state())):
        for name, (shape, pieces) in state.items():
            whole = found.setdefault(name, torch.full(shape, math.nan, dtype=torch.float64))
            for values, offsets in pieces:
                box = tuple(slice(at, at + size) for at, size in zip(offsets, values.shape, strict=True))
                whole[box] = values
    return found


def _as_sent(state: State) -> dict[str, tuple[tuple[int, ...], list[tuple[Tensor, tuple[int, ...]]]]]:
    return {
        name: (sharded.shape, [(shard.tensor.detach().cpu().clone(), shard.offsets) for shard in sharded.shards])
        for name, sharded in state.items()
    }


def unlike(expected: Tensors, found: Tensors) -> int:
    """Elements of two states that differ, or are missing in one."""
    differ = sum(int((found[name] != whole).sum()) for name, whole in expected.items())  # NaN is unlike itself
    return differ + sum(whole.numel() for name, whole in found.items() if name not in expected)


def apart(one: Tensors, other: Tensors) -> float:
    """The largest distance between two states."""
    return most((one[name] - other[name]).abs().max().item() for name in one)
