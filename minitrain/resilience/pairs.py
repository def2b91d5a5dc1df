"""Pairs: which node is faulty, from tests of two nodes at a time that only say whether both are well.

**Idea.** Each node first multiplies matrices by itself. Then the nodes all-gather in pairs: a pair that passes consists
of two healthy nodes, one that fails of suspects. Each suspect is then paired with a node that is known to be healthy,
and fails only if it is itself faulty. If no pair passes, the nodes are paired otherwise; if none ever does, fewer than
two nodes are healthy, and nothing can be decided.

**Source.** DLRover's node check: matrix product, and all-gather in pairs, in two rounds. MegaScale (2024), §4.
**Sent.** The tested tensor, once in each direction per pair and round; and one number per pair to everyone.
**Cost.** Two rounds, where some pair of the first passes and at most half of the nodes are suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, exchange, rank_and_size

Pairs = list[tuple[int, int]]


def product(device: torch.device | str, n: int = 64) -> bool:
    """Whether this device multiplies as a CPU does; exactly, as all sums are whole numbers below 2²⁴."""
    a = (torch.arange(n * n) % 7 - 3).view(n, n)  # (n, n)
    right = a @ a
    a = a.to(device, torch.float32)
    return torch.equal((a @ a).cpu().long(), right)


def pairings(nodes: Sequence[int]) -> Iterator[Pairs]:
    """All ways of the circle method, in which each two nodes meet once; of an odd number one is left out in turn."""
    circle = [*nodes, *[-1] * (len(nodes) % 2)]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [pair for pair in pairs if -1 not in pair]
        # The first stays, and all others move on by one seat.
        circle = [circle[0], circle[-1], *circle[1:-1]]


def find(nodes: Sequence[int], test: Callable[[Pairs], list[bool]]) -> list[int] | None:
    """The faulty nodes, or None where that cannot be decided; `test` says which pairs pass."""
    healthy: list[int] = []
    for pairs in pairings(nodes):
        healthy = [node for pair, well in zip(pairs, test(pairs), strict=True) if well for node in pair]
        if healthy:
            break
    if not healthy:
        # Each pairing has failed altogether: any one node at most is healthy.
        return None
    suspects = [node for node in nodes if node not in healthy]
    faulty = []
    while suspects:
        # As many at a time as there are healthy ones to test them.
        pairs = list(zip(suspects, healthy, strict=False))
        faulty += [suspect for (suspect, _), well in zip(pairs, test(pairs), strict=True) if not well]
        suspects = suspects[len(pairs) :]
    return sorted(faulty)


def exchange_in_pairs(pairs: Pairs, tensor: Tensor, group: Group = None) -> list[bool]:
    """The test on ranks: the two of a pair swap `tensor`, which must be the same on all, and compare.

    Every rank calls it, also one that is in no pair.
    """
    rank, _ = rank_and_size(group)
    wrong = torch.zeros(len(pairs), device=tensor.device)
    for number, pair in enumerate(pairs):
        if rank in pair:
            other = pair[1] if rank == pair[0] else pair[0]
            arrived = torch.empty_like(tensor)
            exchange(tensor, other, arrived, other, group).wait()
            wrong[number] = not torch.equal(arrived, tensor)
    # A pair passes if both are content. (In a cluster, verdicts go another way than what is tested.)
    all_reduce(wrong, group).wait()
    return [not each for each in wrong.tolist()]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
