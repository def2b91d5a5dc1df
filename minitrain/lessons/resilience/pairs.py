"""The lesson of `minitrain.resilience.pairs`: all sets of faulty nodes, and ranks whose messages arrive spoilt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.resilience.pairs import Pairs, exchange_in_pairs, find, pairings, product

DLROVER = "DLRover, node check"
NODES = range(4, 9)


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


def simulated() -> list[Claim]:
    """Claims on all sets of faulty nodes."""
    found = naive = spoilt = 0
    rounds: dict[int, int] = {}
    for nodes in NODES:
        for faulty in fault_sets(nodes, 2):
            asked: list[Pairs] = []
            answer = find(range(nodes), lambda pairs, faulty=faulty, asked=asked: note(asked, pairs, faulty))
            found += answer is not None and set(answer) == faulty
            naive += shifted(nodes, faulty) == faulty
            spoilt += not any(tested(next(pairings(range(nodes))), faulty))
            if len(faulty) == 1:
                rounds[nodes] = max(rounds.get(nodes, 0), len(asked))
    undecided = wrong = 0
    for nodes in range(1, 9):
        for faulty in fault_sets(nodes, nodes):
            answer = find(range(nodes), lambda pairs, faulty=faulty: tested(pairs, faulty))
            undecided += answer is None
            wrong += answer is not None and set(answer) != faulty
    cases = sum(costs.fault_sets(nodes, 2) for nodes in NODES)
    by_shifting = sum(costs.found_by_shifted_pairs(nodes) for nodes in NODES)
    unpaired = sum(costs.spoilt_pairings(nodes, faults) for nodes in NODES for faults in range(3))
    impossible = sum(map(costs.undecidable, range(1, 9)))
    return [
        *as_key(
            Claim("up to 2 faults among 4 to 8 nodes: sets found exactly", "Σ C(n, f)", cases, found, source="derived"),
            Claim("the same by two rounds of shifted pairs", "Σ C(n, f) − …", by_shifting, naive, source="derived"),
            Claim(
                "any faults among 1 to 8 nodes: sets in which it cannot decide",
                "Σ (n + 1)",
                impossible,
                undecided,
                source="derived",
            ),
            Claim("… and sets in which its answer is wrong", "0", 0, wrong, source="derived"),
        ),
        Claim(
            "up to 2 faults: sets that fail all pairs of the first round",
            "Σ (−1)ᵏ C(m, k) C(n − 2k, f)",
            unpaired,
            spoilt,
            source="derived",
        ),
        fold(
            "one fault among 4 to 8 nodes: most rounds of pairs",
            {
                f"{n} nodes": Claim("", "1 + ⌈(2 + n mod 2)/(2⌊n/2⌋ − 2)⌉", costs.rounds_with_one_fault(n), most)
                for n, most in rounds.items()
            },
        ),
    ]


def note(asked: list[Pairs], pairs: Pairs, faulty: set[int]) -> list[bool]:
    asked.append(pairs)
    return tested(pairs, faulty)


def payload(world: World, faulty: int, elements: int) -> Tensor:
    """What a rank brings to the test: everyone the same, except for one number on a faulty rank."""
    tensor = torch.arange(elements, dtype=torch.float32, device=world.device)
    tensor[elements // 2] += world.rank == faulty
    return tensor


def on_ranks(world: World, elements: int) -> int:
    """Each rank faulty in turn: how many are found, from messages that really arrive with another number."""
    found = 0
    for faulty in range(world.size):
        tensor = payload(world, faulty, elements)
        found += find(range(world.size), lambda pairs, tensor=tensor: exchange_in_pairs(pairs, tensor)) == [faulty]
    return found


def demo(world: World, elements: int = 1001) -> list[Claim]:
    """Finds faulty nodes from tests of pairs, in all cases and on real ranks; the table shows what a naive way misses.

    Args:
        elements: Of the tensor that two ranks exchange.
    """
    assert elements > 0, f"elements={elements} leaves nothing to exchange"
    tensor = payload(world, -1, elements)
    with Ledger() as ledger, world.timed("a check of all ranks, of which none is faulty"):
        healthy = find(range(world.size), lambda pairs: exchange_in_pairs(pairs, tensor))
    sent = sum(gather_objects(ledger.sent))
    predicted = costs.pair_bytes(world.size, tensor.nbytes)
    multiplies = sum(gather_objects(product(world.device)))
    what = "real ranks, each faulty in turn: ranks found from what arrives"
    if world.size < 3:
        by_messages = Claim.needs_ranks(3, what, "n", DLROVER, key=True)
    else:
        by_messages = Claim(what, "n", world.size, on_ranks(world, elements), source=DLROVER, key=True)
    claims = simulated()
    claims.insert(4, by_messages)
    claims.insert(
        5, Claim("real ranks, none faulty: bytes sent by all", "2⌈n/2⌉ S", predicted, sent, "B", "derived", key=True)
    )
    return [
        *claims,
        Claim("real ranks that multiply matrices as a CPU does", "n", world.size, multiplies, source=DLROVER),
        Claim("real ranks, none faulty: ranks accused", "0", 0, len(healthy or []), source="derived"),
    ]
