"""Shared by the demos of this chapter: what is sent, the values of each verb, and time on the virtual clock.

On four ranks several formulas give one number: log2 n is n/2 there, and rounding it up or down changes nothing. So
each claim is tried on three ranks, too, and where elements do not divide or are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm import Ledger, Timeline, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, rank_and_size
from minitrain.comm.timeline import Links
from minitrain.costs.communication import Traffic
from minitrain.lessons.rows import Rows

# The links of the virtual clock: 7.6 µs and 29 ps per byte (34 GB/s). Powers of two, so that no sum of times rounds and
# the virtual clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-17, 2.0**-35

Start = Callable[[Tensor], Any]


def tensor(world: World, elements: int) -> Tensor:
    """Whole numbers from −8 to 8, different on each rank: their sums are exact in any order."""
    return _drawn(world.rank, elements).to(world.device, copy=True)


@lru_cache(maxsize=4)  # drawing a million takes longer than sending them
def _drawn(seed: int, elements: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (elements,), generator=generator, dtype=torch.float32)


def groups_of(world: World) -> dict[str, Group]:
    """Everyone, and where there are more, the first three ranks: the groups that this rank is in. All ranks call it."""
    found: dict[str, Group] = {f"{world.size} ranks": None}
    if world.size > 3:
        three = new_group([0, 1, 2])
        if world.rank < 3:
            found["3 ranks"] = three
    return found


def count(world: World, start: Start, elements: int) -> Ledger:
    """Run a verb, and count what this rank sends."""
    values = tensor(world, elements)
    with Ledger() as ledger:
        start(values)
    return ledger


def all_reduces(
    world: World,
    rows: Rows,
    name: str,
    module: Any,
    verbs: str,
    elements: int,
    sent: tuple[str, Callable[..., Traffic]],
    time: tuple[str, Callable[..., float]],
    groups: Mapping[str, Group],
) -> None:
    """Claims on an algorithm: bytes of its all-reduce, the values of all its verbs, and the time of its all-reduce.

    Args:
        world: This rank.
        rows: Where the claims go.
        name: Of the algorithm.
        module: Its small form.
        verbs: All that it has, with spaces between them.
        elements: One more is counted, and fewer than ranks.
        sent: What a rank sends: the formula, and its function in `minitrain.costs`.
        time: Seconds until the last rank is done, likewise.
        groups: The ranks among which it is run.
    """
    for where, group in groups.items():
        rank, ranks = rank_and_size(group)
        start = partial(module.all_reduce, group=group)
        what = f"{name} all-reduce of up to {elements + 1:,} float32: bytes sent by this rank"
        for size in (3001 if group else elements + 1, max(1, ranks - 1)):
            formula, predicted = sent[0], sent[1](size, 4, ranks, rank).bytes
            rows.add(what, formula, predicted, count(world, start, size).sent, case=f"{size:,} elements on {where}")
        values(world, rows, name, module, verbs, group, where)
        step = ranks << (ranks.bit_length() - 1)  # all chunks, and all blocks of halving, are of one size
        even = -(-elements // step) * step
        what = f"{name} all-reduce: time until the last rank is done"
        seconds, _ = virtual_run(world, start, even, group=group)
        rows.time(what, time[0], time[1](4 * even, ranks, ALPHA, BETA), seconds, case=where)


def values(
    world: World, rows: Rows, name: str, module: Any, verbs: str, group: Group = None, where: str = "", **groups: Group
) -> None:
    """The claim that every verb gives what torch.distributed gives, of whole numbers, the sums of which are exact.

    `where` names the group; `groups` are those that the verbs take, where these are others.
    """
    rank, ranks = rank_and_size(group)
    for shape in ((73, 137), (max(1, ranks - 1),)):  # 10,001 elements, and fewer than ranks
        mine = (torch.arange(torch.Size(shape).numel()).view(shape) * 7 % 5 + 3 * rank).to(world.device)
        total, everyone = mine.clone(), [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_reduce(total, group=group)
        dist.all_gather(everyone, mine, group)
        chunks = torch.cat([its.view(-1).tensor_split(ranks)[r] for r, its in enumerate(everyone)])
        right = {"all_reduce": total, "all_gather": chunks.view(shape), "broadcast": everyone[0]}
        right |= {"reduce_scatter": total.view(-1).tensor_split(ranks)[rank], "reduce": total}
        for verb in verbs.split():
            found = mine.clone()
            result = getattr(module, verb)(found, **groups or {"group": group})
            if verb == "reduce_scatter":
                found = found.view(-1).tensor_split(ranks)[rank]  # its slot, next to what is returned
            if verb == "reduce" and rank != 0:
                continue  # the others hold sums over some of the ranks
            what = f"{name}, every verb: elements that differ from torch.distributed's"
            rows.equal(what, [result, found], [right[verb]] * 2, case=f"{verb}, {shape} on {where}")


def virtual_run(
    world: World, start: Start, elements: int, links: Links | None = None, group: Group = None
) -> tuple[float, Timeline]:
    """Run a verb under a virtual clock: when the last rank of a group is done, and which rank sent what when."""
    sent = tensor(world, elements)
    with VirtualClock(ALPHA, BETA, links) as clock:
        start(sent)
    return max(gather_objects(clock.now, group)), clock.timeline.gather(group)


def show(world: World, name: str, start: Start, elements: int, group: Group = None) -> None:
    """Draw an all-reduce, chunks of one size, on the virtual clock; and tell how long it takes."""
    ranks = rank_and_size(group)[1]
    even = -(-elements // ranks) * ranks
    _, timeline = virtual_run(world, start, even, group=group)
    world.figure(lambda: timeline.draw(f"{name.capitalize()} all-reduce of {4 * even:,} bytes on {ranks} ranks"))
    tell(world, name, start, elements)


def tell(world: World, name: str, start: Start, elements: int) -> None:
    """Tell how long an all-reduce takes on the wall clock."""
    values = tensor(world, elements)
    with world.timed(f"{name} all-reduce of {4 * elements / 1e6:.3g} MB", 4e-9 * elements, "GB"):
        start(values)
