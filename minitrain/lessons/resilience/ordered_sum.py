"""The lesson of `minitrain.resilience.ordered_sum`: the same bits on any number of ranks, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, all_reduce, rank_and_size
from minitrain.costs import communication
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.resilience import training
from minitrain.resilience.ordered_sum import ordered_norm, ordered_sum, share

BETA = 2.0**-30  # virtual seconds per byte: a power of two, so that no time rounds


def train(world: World, micro_batches: int, steps: int, total_of: training.Sum, mine: range) -> Tensor:
    """Weights after some steps of SGD with momentum and clipping; this rank computes the micro-batches `mine`."""
    w = training.weights(world.device)
    m = torch.zeros_like(w)
    for step in range(steps):
        mean = total_of(training.gradients(w, step, mine)) / micro_batches
        m = training.MOMENTUM * m + training.clip(mean, ordered_norm(mean))
        w = w - training.LR * m
    return w


def plainly(group: Group) -> training.Sum:
    """Data parallelism as usual: each rank adds its own, then an all-reduce."""

    def total(found: Sequence[Tensor]) -> Tensor:
        summed = all_reduce(training.in_order(found), group).wait()
        assert summed is not None
        return summed

    return total


def groups_of(world: World) -> dict[int, Group]:
    """The first 1, 2, … ranks, for the ranks in them; every rank calls it."""
    made = {ranks: new_group(range(ranks)) for ranks in range(1, world.size + 1)}
    return {ranks: group for ranks, group in made.items() if world.rank < ranks}


def equal_bits(world: World, groups: dict[int, Group], micro_batches: int, steps: int) -> list[Claim]:
    """Claims on the weights after some steps, compared with one device's."""
    right = train(world, micro_batches, steps, training.in_order, range(micro_batches))
    cases, otherwise = {}, {}
    for ranks, group in groups.items():
        mine = share(micro_batches, world.rank, ranks)
        found = train(world, micro_batches, steps, lambda g, group=group: ordered_sum(g, group), mine)
        cases[f"{ranks} ranks"] = Claim("", "0", 0, different(found, right), "elements", "derived", "compared")
        otherwise[ranks] = different(train(world, micro_batches, steps, plainly(group), mine), right)
    what = f"elements that differ from one device's after {steps} steps, for each number of ranks"
    plain = "… with an all-reduce on all ranks"
    if world.size == 1:
        return [fold(what, cases, key=True), Claim.needs_ranks(2, plain, "1", "derived", key=True)]
    return as_key(
        fold(what, cases), Claim(plain, "1", 1, otherwise[world.size], "elements", "derived", "compared", ">=")
    )


def different(a: Tensor, b: Tensor) -> int:
    return int((a.view(torch.int32) != b.view(torch.int32)).sum())


def bytes_sent(world: World, groups: dict[int, Group]) -> list[Claim]:
    """Claims on the bytes of one sum."""
    cases, in_all = {}, 0
    for ranks, group in groups.items():
        gradient = torch.ones(training.ELEMENTS, device=world.device)
        with Ledger() as ledger:
            ordered_sum([gradient], group)
        sent = costs.ordered_sum_sent(gradient.nbytes, rank_and_size(group)[0], ranks)
        cases[f"{ranks} ranks"] = Claim("", "S per neighbour", sent, ledger.sent, "B", "derived")
        in_all = sum(gather_objects(ledger.sent, group))
    # The largest group first, as a fold shows its first case.
    cases = dict(reversed(cases.items()))
    most = 4 * training.ELEMENTS
    ring = sum(
        communication.ring_all_reduce(training.ELEMENTS, 4, world.size, rank).bytes for rank in range(world.size)
    )
    chain = costs.ordered_sum_sent_in_all(most, world.size)
    return [
        *as_key(
            fold("bytes sent by this rank in one sum, for each number of ranks", cases),
            Claim("bytes sent by all ranks in one sum", "2(n − 1) S", chain, in_all, "B", "derived"),
        ),
        Claim("… as much as a ring all-reduce", "2(n − 1) S", ring, in_all, "B", "Patarasuk & Yuan 2009, §3"),
    ]


def virtual_seconds(world: World, pieces: int, elements: int) -> Claim:
    """The claim on the time of one sum, in some pieces, on the virtual clock."""
    gradient = torch.ones(elements, device=world.device)
    with VirtualClock(0.0, BETA) as clock:
        ordered_sum([gradient], pieces=pieces)
    found = max(gather_objects(clock.now))
    predicted = costs.ordered_sum_seconds(gradient.nbytes, world.size, pieces, 1 / BETA)
    return Claim("", "2(P + n − 2)/P · S/B", predicted, found, "virtual s", "derived", "virtual clock")


def same_norm(threads: Callable[[int], None] = torch.set_num_threads) -> Claim:
    """The claim on the bits of a norm with one thread and with several."""
    before, found = torch.get_num_threads(), set()
    # Several, as two orders may round to the same number.
    some = torch.randn(9, 100_000, generator=torch.Generator().manual_seed(1))
    try:
        for count in (1, 2, 3):
            threads(count)
            found.add(tuple(map(ordered_norm, some)))
    finally:
        threads(before)
    return Claim(
        "ways in which the norms of 9 tensors of 100,000 elements come out, with 1, 2 and 3 threads",
        "1",
        1,
        len(found),
        source="derived",
    )


def demo(world: World, micro_batches: int = 13, steps: int = 3) -> list[Claim]:
    """Trains on 1, 2, … ranks with gradients summed in one order; the table shows equal bits, bytes and time.

    Args:
        micro_batches: Of the batch, at least one per rank; a number that ranks need not divide.
        steps: Of each training.
    """
    groups = groups_of(world)
    with world.timed(f"two trainings of {steps} steps for each number of ranks"):
        claims = equal_bits(world, groups, micro_batches, steps)
    claims += bytes_sent(world, groups)
    times = {f"{pieces} pieces": virtual_seconds(world, pieces, 960) for pieces in (4, 1, 16)}
    return [*claims, *as_key(fold("time of one sum in 4 pieces, in 1 and in 16", times)), same_norm()]
