"""Losses of a small GPT in five precisions over five seeds: an experiment of chapter 06, with its picture."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.data.text import Samples, Text
from minitrain.lessons.precision.common import SEQ, Loss, one_thread
from minitrain.precision import fp8
from minitrain.precision.mixed import MixedPrecision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 2e-3
MIXED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.bfloat16}
ALONE = "float16 alone"
LOOKS = {
    "float32": ("black", "-"),
    "bfloat16": ("#0072B2", "--"),
    "float16": ("#009E73", ":"),
    "fp8": ("#CC79A7", "-."),
    ALONE: ("#D55E00", "-"),
}
Runs = dict[tuple[str, int], list[float]]  # by precision and seed


class EightBits(nn.Module):
    """A linear layer whose three products are in 8 bits, with scales found just in time."""

    def __init__(self, inner: nn.Linear):
        super().__init__()
        self.inner, self.scales = inner, (fp8.Scale(), fp8.Scale(), fp8.Scale())

    def forward(self, x: Tensor) -> Tensor:
        out = fp8.Linear.apply(x.flatten(0, -2), self.inner.weight.t(), self.scales)
        return out.view(*x.shape[:-1], -1) + self.inner.bias


def in_eight_bits(model: Loss) -> Loss:
    """Replace the linear layers of all blocks; embedding, norms and head stay as they are."""
    for block in model.gpt.blocks:
        for part in block.children():
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, EightBits(layer))
    return model


@one_thread()
def losses(world: World, name: str, seed: int, steps: int) -> list[float]:
    """One training on this rank: in float32, in mixed precision, or in float16 with neither copy nor scale."""
    samples, model = Samples(Text.load().training, SEQ), Loss(world.device, seed)
    parts = [[each.to(world.device) for each in samples.batch(step, 8, 0, 1)] for step in range(steps)]
    if name in MIXED:
        # With gloo, which needs the members alone: NCCL would split everyone's group, with all ranks at once.
        group = dist.new_group([world.rank], backend="gloo", use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        model = in_eight_bits(model) if name == "fp8" else model
        training = MixedPrecision(model, MIXED[name], torch.optim.AdamW, group, lr=RATE)
        found = [training.step(*part).item() for part in parts]
        dist.destroy_process_group(group)
        return found
    if name == ALONE:
        model = model.half()
    # torch's ε of 1e-8 would be 0 in float16.
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-7 if name == ALONE else 1e-8)
    found = []
    for part in parts:
        loss = model(*part)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


def trained(world: World, seeds: int = 5, steps: int = 30) -> Runs:
    """All trainings, divided over the ranks; the same on all of them."""
    tasks = list(product(LOOKS, range(seeds)))
    mine = {task: losses(world, *task, steps) for task in tasks[world.rank :: world.size]}
    together = {task: run for part in gather_objects(mine) for task, run in part.items()}
    return {task: together[task] for task in tasks}


def picture(world: World, seeds: int = 5, steps: int = 30) -> Figure:
    """The picture, with all trainings on this rank alone."""
    tasks = list(product(LOOKS, range(seeds)))
    return draw({task: losses(world, *task, steps) for task in world.progress(tasks, "trainings")})


def draw(runs: Runs) -> Figure:
    """The losses, and how far they are from those of float32 with the same seed: median, and all seeds as a band.

    A cross marks the last step at which a loss was finite.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    of = {name: torch.tensor([run for (its, _), run in runs.items() if its == name]) for name in LOOKS}
    for name, found in of.items():
        colour, style = LOOKS[name]
        ends = int(found.isfinite().all(0).long().cumprod(0).sum())
        for axes, values in ((left, found), (right, found - of["float32"])):
            values = values[:, :ends]
            axes.plot(values.median(0).values, style, color=colour, label=name)
            axes.fill_between(range(ends), values.amin(0), values.amax(0), color=colour, alpha=0.2, linewidth=0)
        if ends < found.shape[1]:
            left.plot(ends - 1, found[:, ends - 1].median(), "X", color=colour, markersize=9)
            left.annotate(
                f"{name}: NaN from step {ends} on",
                (ends - 1, found[:, ends - 1].median()),
                xytext=(12, 0),
                textcoords="offset points",
                va="center",
                color=colour,
            )
    for axes, what in ((left, "loss"), (right, "loss minus float32's, same seed")):
        axes.set_xlabel("step")
        axes.set_ylabel(what)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
