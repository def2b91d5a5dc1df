"""The lesson of `minitrain.resilience.ordered_sum`: the same bits on any number of ranks, and what that costs."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience import training
from minitrain.lessons.rows import Rows
from minitrain.resilience.ordered_sum import ordered_sum, share

MICRO_BATCHES, STEPS = 13, 3  # a number that ranks need not divide
BETA = 2.0**-30  # virtual seconds per byte: a power of two, so that no time rounds


def demo(world: World) -> list[Claim]:
    """Trains on 1, 2, … ranks with gradients summed in one order; the table shows equal bits, bytes and time."""
    rows, n = Rows("derived"), world.size
    right = train(world, training.in_order, range(MICRO_BATCHES))
    # The largest group first, as its values are shown.
    for ranks, group in reversed(groups_of(world).items()):
        mine = share(MICRO_BATCHES, world.rank, ranks)
        found = train(world, lambda g, group=group: ordered_sum(g, group), mine)
        what = f"elements that differ from one device's after {STEPS} steps, for each number of ranks"
        rows.add(what, "0", 0, different(found, right), "elements", case=f"{ranks} ranks", how="compared")
    gradient = torch.ones(training.ELEMENTS, device=world.device)
    with Ledger() as ledger:
        ordered_sum([gradient])
    chain, in_all = costs.ordered_sum_sent_in_all(gradient.nbytes, n), sum(gather_objects(ledger.sent))
    rows.add("bytes sent by all ranks in one sum", "2(n − 1) S", chain, in_all)
    for pieces in (4, 1, 16):
        gradient = torch.ones(960, device=world.device)
        with VirtualClock(0.0, BETA) as clock:
            ordered_sum([gradient], pieces=pieces)
        predicted = costs.ordered_sum_seconds(gradient.nbytes, n, pieces, 1 / BETA)
        what, case = "time of one sum in 4 pieces, in 1 and in 16", f"{pieces} pieces"
        rows.time(what, "2(P + n − 2)/P · S/B", predicted, max(gather_objects(clock.now)), case=case)
    return rows.claims()


def train(world: World, total_of: training.Sum, mine: range) -> Tensor:
    """Weights after some steps of SGD with momentum; this rank computes the micro-batches `mine`."""
    w = training.weights(world.device)
    m = torch.zeros_like(w)
    for step in range(STEPS):
        mean = total_of(training.gradients(w, step, mine)) / MICRO_BATCHES
        m = training.MOMENTUM * m + mean
        w = w - training.LR * m
    return w


def groups_of(world: World) -> dict[int, Group]:
    """The first 1, 2, … ranks, for the ranks in them; every rank calls it."""
    made = {ranks: new_group(range(ranks)) for ranks in range(1, world.size + 1)}
    return {ranks: group for ranks, group in made.items() if world.rank < ranks}


def different(a: Tensor, b: Tensor) -> int:
    return int((a.view(torch.int32) != b.view(torch.int32)).sum())
