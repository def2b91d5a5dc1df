"""The lesson of `minitrain.resilience.regroup`: a training that loses a rank, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product, zip_longest
from pathlib import Path

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, all_reduce, rank_and_size
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience import training
from minitrain.lessons.rows import Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.resilience.ordered_sum import ordered_sum, share
from minitrain.resilience.regroup import checkpoint, data_parallel_size, part, regroup, restore

MICRO_BATCHES, STEPS, SAVED = 12, 6, 2  # the step before which it is saved, and after which a rank is lost
LOST = 1  # in the middle, so that the ranks after it get other numbers
Total = Callable[[list[Tensor], Group], Tensor]


def demo(world: World) -> list[Claim]:
    """Loses a rank and goes on with the others; the table compares losses and weights with a training that did not.

    Sums of 12 numbers up to 4 in another order differ by at most 2 · 11 · 2⁻²⁴ · 48, so that a mean differs by about
    5 · 10⁻⁶. A few steps at a rate of 0.1 bring that to less than 10⁻⁵, unless the network amplifies it.
    """
    rows, how = Rows("derived"), (MICRO_BATCHES, STEPS, SAVED)
    losses = f"losses that differ from those with all ranks, ordered sums, steps {SAVED} to {STEPS - 1}"
    weights = "elements of the weights that differ, ordered sums"
    apart = "with an all-reduce: largest difference of the weights"
    if world.size > 1:
        with shared_folder(world) as folder, world.timed("two trainings that lose a rank, and two that do not"):
            ordered, plain = (lose(world, folder / each.__name__, each, *how) for each in (ordered_sum, plainly))
        rows.add(losses, "0", 0, ordered[0], "losses", how="compared")
        rows.add(weights, "0", 0, ordered[1], "elements", how="compared")
        rows.add(apart, "0", 0, plain[2], "1", "heuristic, no proof", how="compared", absolute=1e-5)
    else:
        for name in (losses, weights, apart):
            rows.needs(2, name, "0")
    what = "ranks that share 7, 12, 30 or 64 micro-batches, of 1 to 16 that are left"
    for left, batch in product(range(1, 17), (7, 12, 30, 64)):
        theory, case = costs.data_parallel_size(left, batch), f"{left} ranks left, {batch} micro-batches"
        rows.add(what, "max d | M, d ≤ n", theory, data_parallel_size(left, batch), "ranks", case=case)
    return rows.claims()


def lose(
    world: World, folder: Path, total_of: Total, micro_batches: int, steps: int, saved: int
) -> tuple[int, int, float]:
    """Train to the end with all ranks, and once more from step `saved` on without one.

    The lost rank only leaves: that of a demo must live on. So groups are made by all ranks, as NCCL wants it;
    `tests/resilience/test_regroup.py` kills a rank.

    Returns:
        Losses and elements of the weights that differ, and the largest difference of weights. Not every rank takes part
        in both, so rank 0, which does, says it.
    """
    working = regroup(range(world.size), micro_batches)
    left = regroup([rank for rank in range(world.size) if rank != LOST], micro_batches)
    group, fewer = new_group(working), new_group(left)
    w, whole, broken = training.weights(world.device), list[float](), list[float]()
    right = torch.empty_like(w)
    if world.rank in working:
        m = torch.zeros_like(w[part(len(w), group)])
        w, m = train(group, w, m, range(saved), micro_batches, total_of, [])
        checkpoint(folder, w, m, group)
        right, _ = train(group, w, m, range(saved, steps), micro_batches, total_of, whole)
    gather_objects(None)  # the moment in which all know that a rank is lost
    if world.rank in left:
        w = torch.empty_like(w)
        m = restore(folder, w, fewer)
        w, _ = train(fewer, w, m, range(saved, steps), micro_batches, total_of, broken)
    losses = sum(a != b for a, b in zip_longest(whole, broken))
    return gather_objects((losses, int((w != right).sum()), float((w - right).abs().max())))[0]


def plainly(found: list[Tensor], group: Group) -> Tensor:
    """The usual sum: each rank's own, then an all-reduce."""
    total = training.in_order(found)
    all_reduce(total, group).wait()
    return total


def train(
    group: Group, w: Tensor, m: Tensor, steps: range, micro_batches: int, total_of: Total, losses: list[float]
) -> tuple[Tensor, Tensor]:
    """Some steps with momentum that is cut over the ranks, as in ZeRO-1: each steps its part of the weights."""
    rank, ranks = rank_and_size(group)
    mine, batch = part(len(w), group), share(micro_batches, rank, ranks)
    for step in steps:
        losses.append(sum(float(training.loss_of(w, step, each)) for each in range(micro_batches)))
        mean = total_of(training.gradients(w, step, batch), group) / micro_batches
        m = training.MOMENTUM * m + mean[mine]
        # All parts, which may differ in size by one: a sum in which all else is 0.
        new = torch.zeros_like(w)
        new[mine] = w[mine] - training.LR * m
        all_reduce(new, group).wait()
        w = new
    return w, m
