"""The lesson of `minitrain.resilience.regroup`: a training that loses a rank, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, all_gather, all_reduce, rank_and_size
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.composition.common import shared_folder
from minitrain.lessons.resilience import training
from minitrain.resilience.ordered_sum import ordered_sum, share
from minitrain.resilience.regroup import checkpoint, data_parallel_size, part, regroup, restore

LOST = 1  # in the middle, so that the ranks after it get other numbers
Total = Callable[[list[Tensor], Group], Tensor]


class Run(NamedTuple):
    """What a rank has after a training: the loss before each step, and the weights; nothing if it is a spare."""

    losses: dict[int, float]
    weights: Tensor | None


def plainly(found: list[Tensor], group: Group) -> Tensor:
    """The usual sum: each rank's own, then an all-reduce."""
    total = all_reduce(training.in_order(found), group).wait()
    assert total is not None
    return total


def collected(shard: Tensor, elements: int, group: Group) -> Tensor:
    """All parts of a vector, of sizes that differ by one at most."""
    _, ranks = rank_and_size(group)
    longest = -(-elements // ranks)
    padded = torch.zeros(longest, device=shard.device)
    padded[: len(shard)] = shard
    everyone = all_gather(padded, group).wait()
    assert everyone is not None
    sizes = [elements * (rank + 1) // ranks - elements * rank // ranks for rank in range(ranks)]
    return torch.cat([each[:size] for each, size in zip(everyone.split(longest), sizes, strict=True)])


def steps_of(
    group: Group, w: Tensor, m: Tensor, steps: range, micro_batches: int, total_of: Total, losses: dict
) -> tuple[Tensor, Tensor]:
    """Some steps with momentum that is cut over the ranks, as in ZeRO-1: each steps its part of the weights."""
    rank, ranks = rank_and_size(group)
    mine, batch = part(len(w), group), share(micro_batches, rank, ranks)
    for step in steps:
        losses[step] = sum(float(training.loss_of(w, step, each)) for each in range(micro_batches))
        mean = total_of(training.gradients(w, step, batch), group) / micro_batches
        m = training.MOMENTUM * m + mean[mine]
        w = collected(w[mine] - training.LR * m, len(w), group)
    return w, m


def train(
    world: World, folder: Path | None, steps: int, saved: int, fails: int, micro_batches: int, total_of: Total
) -> Run:
    """This rank's part of a training that is saved before step `saved`, and loses a rank in step `fails`.

    Without a folder nothing is saved and no rank is lost. The lost rank only leaves: that of a demo must live on. So
    groups are made by all ranks, as NCCL wants it; `tests/resilience/test_regroup.py` kills a rank.
    """
    everyone = list(range(world.size))
    working = regroup(everyone, micro_batches)
    group = new_group(working)
    w, losses = training.weights(world.device), {}
    if world.rank in working:
        m = torch.zeros_like(w[part(len(w), group)])
        w, m = steps_of(group, w, m, range(saved), micro_batches, total_of, losses)
        if folder:
            checkpoint(folder, w, m, group)
        w, m = steps_of(group, w, m, range(saved, fails if folder else steps), micro_batches, total_of, losses)
    if folder is None:
        return Run(losses, w if world.rank in working else None)
    gather_objects(None)  # the moment in which all know that a rank is lost
    working = regroup([rank for rank in everyone if rank != LOST], micro_batches)
    group = new_group(working)
    if world.rank not in working:
        return Run({}, None)
    m, losses = restore(folder, w, group), {}
    w, m = steps_of(group, w, m, range(saved, steps), micro_batches, total_of, losses)
    return Run(losses, w)


def compare(world: World, runs: tuple[Run, Run], saved: int, steps: int) -> tuple[int, int, float]:
    """Losses and elements of the weights that differ between two runs, and the largest difference of weights.

    Not every rank took part in both, so rank 0, which did, says it.
    """
    whole, broken = runs
    found = (0, 0, 0.0)
    if world.rank == 0:
        assert whole.weights is not None and broken.weights is not None
        losses = sum(whole.losses[step] != broken.losses[step] for step in range(saved, steps))
        off = whole.weights - broken.weights
        found = losses, int((off != 0).sum()), float(off.abs().max())
    return gather_objects(found)[0]


def sizes(most: int = 16) -> Claim:
    """The claim on the number of ranks that share the batch, for many numbers of ranks and micro-batches."""
    cases = {
        f"{left} ranks left, {batch} micro-batches": Claim(
            "", "max d | M, d ≤ n", costs.data_parallel_size(left, batch), data_parallel_size(left, batch), "ranks"
        )
        for left in range(1, most + 1)
        for batch in (7, 12, 30, 64)
    }
    return fold(f"ranks that share 7, 12, 30 or 64 micro-batches, of 1 to {most} that are left", cases, key=True)


def demo(world: World, micro_batches: int = 12, steps: int = 6, saved: int = 2, fails: int = 4) -> list[Claim]:
    """Loses a rank and goes on with the others; the table compares losses and weights with a training that did not.

    Sums of 12 numbers up to 4 in another order differ by at most 2 · 11 · 2⁻²⁴ · 48, so that a mean differs by about
    5 · 10⁻⁶. A few steps at a rate of 0.1 bring that to less than 10⁻⁵, unless the network amplifies it.

    Args:
        micro_batches: Of the global batch.
        steps: Of the training.
        saved: The step before which it is saved.
        fails: The step in which a rank is lost.
    """
    assert 0 < saved < fails < steps, f"invalid: {saved=}, {fails=}, {steps=}"
    names = (
        f"losses that differ from those with all ranks, ordered sums, steps {saved} to {steps - 1}",
        "elements of the weights that differ, ordered sums",
        "with an all-reduce: largest difference of the weights",
    )
    if world.size == 1:
        return [*(Claim.needs_ranks(2, name, "0", "derived", key=True) for name in names), sizes()]
    found = {}
    with shared_folder(world) as folder, world.timed("four trainings, two of which lose a rank"):
        for name, total_of in (("ordered", ordered_sum), ("all-reduce", plainly)):
            settings = (steps, saved, fails, micro_batches, total_of)
            runs = train(world, None, *settings), train(world, folder / name, *settings)
            found[name] = compare(world, runs, saved, steps)
    (losses, elements, _), (_, _, off) = found.values()
    return [
        *as_key(
            Claim(names[0], "0", 0, losses, "losses", "derived", "compared"),
            Claim(names[1], "0", 0, elements, "elements", "derived", "compared"),
            Claim(names[2], "0", 0, off, source="heuristic, no proof", how="compared", absolute=1e-5),
        ),
        sizes(),
    ]
