"""Scenes of messages alone: three collectives, and four that are broken on purpose, to see who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from minitrain.collectives import hierarchical, ring, tree
from minitrain.comm import World
from minitrain.comm.groups import new_group
from minitrain.comm.messages import all_reduce, receive, send
from minitrain.costs import communication as costs
from minitrain.player.record import Scene

ITEM = 4  # bytes of a float32


def decimal(world: World, elements: int) -> Tensor:
    """Values of 10ʳ on rank r: the digits of a sum say whose values are in it."""
    return torch.full((elements,), 10.0**world.rank)


def ring_all_reduce(world: World) -> Scene:
    x = decimal(world, 8)
    return Scene(
        lambda: ring.all_reduce(x),
        {"tensor": x},
        "Ring all-reduce",
        "Rank r begins with eight times 10ʳ, so the digits of a sum say whose values are in it.",
        ("2(n−1)/n · S", costs.ring_all_reduce(8, ITEM, world.size, world.rank).bytes),
        skip=("cut",),
        digits=True,
        phases={"reduce_scatter": "reduce-scatter", "all_gather": "all-gather"},
        ask={"own += incoming": ("Whose values are in `own` after this line?", ["own"])},
    )


def tree_all_reduce(world: World) -> Scene:
    x = decimal(world, 4)
    return Scene(
        lambda: tree.all_reduce(x),
        {"tensor": x},
        "Tree all-reduce",
        "Rank r begins with four times 10ʳ. Sums climb the tree; the result comes down the same way.",
        ("S per child and per parent", costs.tree_all_reduce(4, ITEM, world.size, world.rank).bytes),
        skip=("distances",),
        digits=True,
        phases={"reduce": "up the tree", "broadcast": "down the tree"},
    )


def hierarchical_all_reduce(world: World) -> Scene:
    x, node = decimal(world, 4), world.rank // 2
    pairs = [new_group(each) for each in ([0, 1], [2, 3], [0, 2], [1, 3])]
    levels = costs.hierarchical_all_reduce(4, ITEM, 2, 2, world.rank)
    return Scene(
        lambda: hierarchical.all_reduce(x, pairs[node], pairs[2 + world.rank % 2]),
        {"tensor": x},
        "Hierarchical all-reduce",
        "Two nodes of two ranks: 0 and 1, 2 and 3. Only a half of each tensor crosses between nodes.",
        ("2(L−1)/L · S + 2(N−1)/N · S/L", levels.within.bytes + levels.across.bytes),
        modules=["minitrain.collectives.ring"],
        skip=("cut",),
        digits=True,
    )


# Broken on purpose.


def broken(run: Callable[[World, Tensor], None], title: str, look: str, world: World) -> Scene:
    x = decimal(world, 3)
    return Scene(lambda: run(world, x), {"x": x}, title, look, skip=("<lambda>",))


def each_receives_first(world: World, x: Tensor) -> None:
    other, incoming = 1 - world.rank, torch.empty_like(x)
    # Both ranks wait here for a message that the other sends below.
    receive(incoming, other).wait()
    send(x, other).wait()


def reads_too_early(world: World, x: Tensor) -> None:
    total = x.clone()
    # The handle is kept, and nobody waits for it.
    handle = all_reduce(total)
    total /= world.size  # reads and changes memory that is still being added up
    handle.wait()


def one_leaves_it_out(world: World, x: Tensor) -> None:
    if world.rank != 1:
        # The sum of all ranks; rank 1 never comes.
        all_reduce(x).wait()
    x /= world.size


def one_ends_early(world: World, x: Tensor) -> None:
    for batch in batches(world):
        x += batch
        # An all-reduce per batch. Rank 1 has one batch less, and has left.
        all_reduce(x).wait()


def batches(world: World) -> Iterator[float]:
    yield from ([1.0, 2.0], [1.0])[world.rank % 2]


# The name -> its scene, and on how many ranks it is played.
BROKEN: dict[str, tuple[Callable[[World], Scene], int]] = {
    "deadlock": (partial(broken, each_receives_first, "Two ranks that both receive first", "Step to the end."), 2),
    "forgotten_wait": (
        partial(broken, reads_too_early, "A forgotten wait", "What does the total hold when it is divided?"),
        2,
    ),
    "missing_all_reduce": (
        partial(broken, one_leaves_it_out, "A rank that leaves out the all-reduce", "Who waits, and for whom?"),
        3,
    ),
    "one_ends_early": (partial(broken, one_ends_early, "A rank with one batch less", "Who waits, and for whom?"), 2),
}
