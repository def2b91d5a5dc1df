"""The lesson of `minitrain.resilience.pairs`: all sets of faulty nodes, and ranks whose messages arrive spoilt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.rows import Rows
from minitrain.resilience.pairs import Pairs, exchange_in_pairs, find

NODES, ELEMENTS = range(4, 9), 1001  # of the tensor that two ranks exchange


def demo(world: World) -> list[Claim]:
    """Finds faulty nodes from tests of pairs, in all cases and on ranks; the table shows which are found."""
    rows, n = Rows("derived"), world.size
    sets = [(nodes, faulty) for nodes in NODES for faulty in fault_sets(nodes, 2)]
    answers = [find(range(nodes), lambda pairs, bad=bad: tested(pairs, bad)) for nodes, bad in sets]
    found = sum(answer == sorted(faulty) for answer, (_, faulty) in zip(answers, sets, strict=True))
    theory = sum(costs.fault_sets(nodes, 2) for nodes in NODES)
    rows.add("up to 2 faults among 4 to 8 nodes: sets found exactly", "Σ C(n, f)", theory, found, "1")
    what, right = "real ranks, each faulty in turn: ranks found from what arrives", 0
    with Ledger() as ledger, world.timed("a check of all ranks, of which none is faulty"):
        on_ranks(world, faulty=-1)
    for faulty in range(n if n > 2 else 0):
        right += on_ranks(world, faulty) == [faulty]
    if n > 2:
        rows.add(what, "n", n, right, "1", "DLRover, node check")
    else:
        rows.needs(3, what, "n", "DLRover, node check")
    sent = sum(gather_objects(ledger.sent))
    rows.add("real ranks, none faulty: bytes sent by all", "2⌈n/2⌉ S", costs.pair_bytes(n, 4 * ELEMENTS), sent)
    return rows.claims()


def fault_sets(nodes: int, most: int) -> Iterator[set[int]]:
    for faults in range(most + 1):
        yield from map(set, combinations(range(nodes), faults))


def tested(pairs: Pairs, faulty: set[int]) -> list[bool]:
    """What a test of pairs would say: it passes if both are well."""
    return [not faulty & {a, b} for a, b in pairs]


def shifted(nodes: int, faulty: set[int]) -> set[int]:
    """The naive way: pairs (0, 1), (2, 3), …, then (1, 2), (3, 4), …; faulty is who failed twice."""
    failed = [0] * nodes
    for first in (0, 1):
        seats = [(first + seat) % nodes for seat in range(nodes)]
        pairs = list(zip(seats[::2], seats[1::2], strict=False))
        for pair, well in zip(pairs, tested(pairs, faulty), strict=True):
            for node in pair:
                failed[node] += not well
    return {node for node in range(nodes) if failed[node] == 2}


def on_ranks(world: World, faulty: int) -> list[int] | None:
    """The ranks that are accused; a faulty one sends another number than all others."""
    tensor = torch.arange(ELEMENTS, dtype=torch.float32, device=world.device)
    tensor[ELEMENTS // 2] += world.rank == faulty
    return find(range(world.size), lambda pairs: exchange_in_pairs(pairs, tensor))
