"""The cost of communication: bytes, messages and time of every algorithm of the chapter collectives.

Traffic is what one rank sends, exact for any sizes; empty chunks are not sent. Times are those of the α–β model, α + βS
for a message and one port each way (Hockney 1994; Thakur, Rabenseifner & Gropp 2005, "Cost Model"). n ranks, S bytes in
the full tensor, cᵣ in chunk r, N nodes of L ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Traffic(NamedTuple):
    """What a rank sends: the bytes and the number of its messages."""

    bytes: int
    messages: int

    def __add__(self, other: tuple) -> Traffic:
        return Traffic(self.bytes + other[0], self.messages + other[1])

    def __rmul__(self, times: Any) -> Traffic:
        return Traffic(times * self.bytes, times * self.messages)


NOTHING = Traffic(0, 0)


def one(elements: int, item_size: int, times: int = 1) -> Traffic:
    """`times` messages of `elements` elements; none where there are no elements."""
    return Traffic(times * elements * item_size, times) if elements else NOTHING


def chunk_size(elements: int, ranks: int, rank: int) -> int:
    """Elements of chunk `rank`: ⌊elements/n⌋, and one more for the first (elements mod n), as torch.tensor_split."""
    return elements // ranks + (rank < elements % ranks)


def chunk_start(elements: int, ranks: int, rank: int) -> int:
    """Where chunk `rank` begins in the flat tensor."""
    return rank * (elements // ranks) + min(rank, elements % ranks)


def busiest(traffic: Callable[..., Traffic], elements: int, item_size: int, ranks: int) -> Traffic:
    """The largest traffic of any rank; on a ring, that of the busiest link."""
    return max(traffic(elements, item_size, ranks, rank) for rank in range(ranks))


# ---- naive: Thakur et al. 2005, where the linear algorithms are the baseline ----


def naive_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """(n−1) · S from rank 0, S from every other."""
    return one(elements, item_size, ranks - 1 if rank == 0 else 1)


# ---- ring: Patarasuk & Yuan 2009 ----


def ring_reduce_scatter(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """S − cᵣ in at most n−1 messages: every chunk but the rank's own."""
    return _all_chunks_but(elements, item_size, ranks, rank)


def ring_all_gather(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """S − c of the next rank, in at most n−1 messages: every chunk but the one that the next rank brought."""
    return _all_chunks_but(elements, item_size, ranks, (rank + 1) % ranks)


def ring_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """2S − cᵣ − cᵣ₊₁, which is 2(n−1)/n · S where n divides the elements, in at most 2(n−1) messages."""
    reduce_scatter = ring_reduce_scatter(elements, item_size, ranks, rank)
    return reduce_scatter + ring_all_gather(elements, item_size, ranks, rank)


def _all_chunks_but(elements: int, item_size: int, ranks: int, left_out: int) -> Traffic:
    rest = elements - chunk_size(elements, ranks, left_out)
    return Traffic(rest * item_size, min(elements, ranks) - (left_out < elements))  # chunks with at least one element


# ---- tree: binomial reduce and broadcast, Thakur et al. 2005, "Broadcast" and "Reduce and Allreduce" ----


def tree_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """S once to the parent of every rank but the root, and once to each child.

    Rank 0 has ⌈log2 n⌉ children, rank r > 0 min(trailing zeros of r, ⌈log2(n−r)⌉).
    """
    children = rounds(ranks - rank)
    if rank:
        children = min(children, (rank & -rank).bit_length() - 1)
    return one(elements, item_size, children + (rank > 0))


def rounds(ranks: int) -> int:
    """⌈log2 n⌉, the steps of a binomial tree."""
    return (ranks - 1).bit_length()


# ---- halving and doubling: Rabenseifner 2004; Thakur et al. 2005, "Reduce-Scatter" and "Reduce and Allreduce" ----


def halving_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """At each width w = 1, 2, …, n/2: the neighboring group of w chunks when halving, the own one when doubling.

    About 2(n−1)/n · S in 2 log2 n messages; n is a power of two.
    """
    widths = [1 << k for k in range(ranks.bit_length() - 1)]
    halving = [_group(elements, ranks, rank ^ width, width) for width in widths]
    sizes = halving + [_group(elements, ranks, rank, width) for width in widths]
    return Traffic(sum(sizes) * item_size, sum(size > 0 for size in sizes))


def _group(elements: int, ranks: int, rank: int, width: int) -> int:
    """Elements of the aligned group of `width` chunks that the rank's own is in."""
    first = rank - rank % width
    return chunk_start(elements, ranks, first + width) - chunk_start(elements, ranks, first)


# ---- hierarchical: rings within nodes and across them; rank = node · local + place ----


class Levels(NamedTuple):
    """What a rank sends within its own node, and across to other nodes."""

    within: Traffic
    across: Traffic


def hierarchical_all_reduce(elements: int, item_size: int, nodes: int, local: int, rank: int) -> Levels:
    """Within: a ring's reduce-scatter and all-gather of S over L ranks. Across: a ring's all-reduce of S/L, N nodes."""
    node, place = divmod(rank, local)
    within = ring_all_reduce(elements, item_size, local, place)
    return Levels(within, ring_all_reduce(chunk_size(elements, local, place), item_size, nodes, node))


# ---- time: seconds until the last rank is done; `size` is S in bytes ----


def naive_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2(n−1)(α + βS): everything goes through the root's one port."""
    return 2 * (ranks - 1) * (alpha + beta * size)


def ring_reduce_scatter_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """(n−1)(α + βS/n), and the same for the all-gather."""
    return (ranks - 1) * (alpha + beta * size / ranks)


def ring_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2(n−1)(α + βS/n): about 2βS for any number of ranks, as long as α is small compared with βS/n."""
    return 2 * ring_reduce_scatter_time(size, ranks, alpha, beta)


def tree_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2⌈log2 n⌉(α + βS)."""
    return 2 * rounds(ranks) * (alpha + beta * size)


def halving_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2 log2 n · α + 2(n−1)/n · βS; n is a power of two."""
    return 2 * rounds(ranks) * alpha + 2 * (ranks - 1) / ranks * beta * size


def hierarchical_all_reduce_time(
    size: float, nodes: int, local: int, within: tuple[float, float], across: tuple[float, float]
) -> float:
    """2(L−1)(α + βS/L) within a node, and 2(N−1)(α' + β'S/(LN)) across N nodes with their own α' and β'."""
    return ring_all_reduce_time(size, local, *within) + ring_all_reduce_time(size / local, nodes, *across)


def crossover(ranks: int, alpha: float, beta: float) -> float:
    """Bytes above which a ring's all-reduce is faster than a tree's; 0 for up to 3 ranks.

    2(n−1)(α + βS/n) = 2⌈log2 n⌉(α + βS) solved for S: α/β · (n−1−⌈log2 n⌉) / (⌈log2 n⌉ − (n−1)/n).
    """
    if ranks < 2:
        return 0.0
    return alpha / beta * (ranks - 1 - rounds(ranks)) / (rounds(ranks) - (ranks - 1) / ranks)


# Bytes that must cross a rank's link for each byte of the full tensor: doc/PERFORMANCE.md of nccl-tests, and its
# programs for the verbs that are not in there: gather, scatter and sendrecv.
_BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "gather": lambda ranks: (ranks - 1) / ranks,
    "scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "send_receive": lambda ranks: 1.0,
}


def bus_bandwidth(size: float, seconds: float, ranks: int, operation: str = "all_reduce") -> float:
    """Bytes per second on each link that an optimal algorithm would need to be as fast, from nccl-tests.

    size/seconds times 2(n−1)/n for an all-reduce; (n−1)/n for a reduce-scatter, all-gather, all-to-all, gather or
    scatter; 1 for a broadcast or reduce. `size` is S, the larger of what a rank puts in and gets out.
    """
    if operation not in _BUS_FACTORS:
        raise ValueError(f"operation={operation!r} is unknown; use one of {', '.join(_BUS_FACTORS)}")
    return size / seconds * _BUS_FACTORS[operation](ranks)
