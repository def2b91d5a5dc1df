"""The cost of communication: bytes, messages and time of every algorithm of the chapter collectives.

Traffic is what one rank sends, exact for any sizes; empty chunks are not sent. Times are those of the α–β model, α + βS
for a message and one port each way (Hockney 1994; Thakur, Rabenseifner & Gropp 2005, "Cost Model"). n ranks, S bytes in
the full tensor, cᵣ in chunk r, m the largest power of two with m ≤ n, N nodes of L ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Traffic(NamedTuple):
    """What a rank sends: the bytes and the number of its messages."""

    bytes: int
    messages: int

    def __add__(self, other: tuple) -> Traffic:
        return Traffic(self.bytes + other[0], self.messages + other[1])


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


def naive_reduce_scatter(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """S − c₀ from rank 0 (each rank its chunk), S from every other."""
    return _all_chunks_but(elements, item_size, ranks, 0) if rank == 0 else one(elements, item_size)


def naive_all_gather(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """(n−1) · S from rank 0, cᵣ from every other."""
    if rank == 0:
        return one(elements, item_size, ranks - 1)
    return one(chunk_size(elements, ranks, rank), item_size)


def naive_broadcast(elements: int, item_size: int, ranks: int, rank: int, source: int = 0) -> Traffic:
    """(n−1) · S from the source, nothing from the others."""
    return one(elements, item_size, ranks - 1) if rank == source else NOTHING


def naive_root_load(elements: int, item_size: int, ranks: int) -> int:
    """Bytes through rank 0 in an all-reduce, in and out: 2(n−1) · S."""
    return 2 * (ranks - 1) * elements * item_size


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


def ring_broadcast(elements: int, item_size: int, ranks: int, rank: int, source: int = 0) -> Traffic:
    """S in at most n messages from every rank but the last before the source."""
    if ranks == 1 or (rank + 1) % ranks == source:
        return NOTHING
    return Traffic(elements * item_size, min(elements, ranks))


def _all_chunks_but(elements: int, item_size: int, ranks: int, left_out: int) -> Traffic:
    rest = elements - chunk_size(elements, ranks, left_out)
    return Traffic(rest * item_size, min(elements, ranks) - (left_out < elements))  # chunks with at least one element


# ---- tree: binomial reduce and broadcast, Thakur et al. 2005, "Broadcast" and "Reduce and Allreduce" ----


def tree_reduce(elements: int, item_size: int, ranks: int, rank: int, to: int = 0) -> Traffic:
    """S from every rank but the root."""
    return NOTHING if rank == to else one(elements, item_size)


def tree_broadcast(elements: int, item_size: int, ranks: int, rank: int, source: int = 0) -> Traffic:
    """S to each child: ⌈log2 n⌉ at the source, min(trailing zeros of p, ⌈log2(n−p)⌉) at place p > 0 of the tree."""
    place = (rank - source) % ranks
    children = rounds(ranks - place)
    if place:
        children = min(children, (place & -place).bit_length() - 1)
    return one(elements, item_size, children)


def tree_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """Reduce to rank 0, then broadcast from it."""
    return tree_reduce(elements, item_size, ranks, rank) + tree_broadcast(elements, item_size, ranks, rank)


def rounds(ranks: int) -> int:
    """⌈log2 n⌉, the steps of a binomial tree."""
    return (ranks - 1).bit_length()


# ---- halving and doubling: Rabenseifner 2004; Thakur et al. 2005, "Reduce-Scatter" and "Reduce and Allreduce" ----


def halving_reduce_scatter(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """S − cᵣ in log2 n messages for a power of two.

    Otherwise an even folded rank sends S; its odd partner sends S less both chunks, and then the even rank's chunk.
    """
    cores, extra, core = _fold(ranks, rank)
    if core is None:
        return one(elements, item_size)
    sent = _halve(lambda i: chunk_start(elements, ranks, i + min(i, extra)), item_size, cores, core)
    return sent + one(chunk_size(elements, ranks, rank - 1), item_size) if rank < 2 * extra else sent


def halving_all_gather(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """Σₖ (chunks of the 2ᵏ ranks around r), k < log2 n: about (n−1)/n · S for a power of two.

    Otherwise an even folded rank sends its chunk; its odd partner brings both chunks, and then sends it S.
    """
    cores, extra, core = _fold(ranks, rank)
    if core is None:
        return one(chunk_size(elements, ranks, rank), item_size)
    sent = _double(lambda i: chunk_start(elements, ranks, i + min(i, extra)), item_size, cores, core)
    return sent + one(elements, item_size) if rank < 2 * extra else sent


def halving_all_reduce(elements: int, item_size: int, ranks: int, rank: int) -> Traffic:
    """Halving and doubling among m ranks, on m equal blocks; each pair of folded ranks sends S there and S back."""
    cores, extra, core = _fold(ranks, rank)
    if core is None:
        return one(elements, item_size)

    def start(block: int) -> int:
        return chunk_start(elements, cores, block)

    sent = _halve(start, item_size, cores, core) + _double(start, item_size, cores, core)
    return sent + one(elements, item_size) if rank < 2 * extra else sent


def _fold(ranks: int, rank: int) -> tuple[int, int, int | None]:
    """m, n − m, and the rank's number among the m ranks that halve and double; None for one folded into the next."""
    cores = 1 << (ranks.bit_length() - 1)
    extra = ranks - cores
    if rank >= 2 * extra:
        return cores, extra, rank - extra
    return cores, extra, rank // 2 if rank % 2 else None


def _aligned(start: Callable[[int], int], core: int, width: int) -> int:
    """Elements of the aligned group of `width` blocks that `core` lies in."""
    first = core - core % width
    return start(first + width) - start(first)


def _halve(start: Callable[[int], int], item_size: int, cores: int, core: int) -> Traffic:
    """At each width w = m/2, m/4, …, 1: the neighboring group of w blocks. Together all blocks but the core's own."""
    widths = [1 << k for k in range(cores.bit_length() - 1)]
    sizes = [_aligned(start, core ^ width, width) for width in widths]
    return Traffic(sum(sizes) * item_size, sum(size > 0 for size in sizes))


def _double(start: Callable[[int], int], item_size: int, cores: int, core: int) -> Traffic:
    """At each width w = 1, 2, …, m/2: the group of w blocks that the core lies in."""
    widths = [1 << k for k in range(cores.bit_length() - 1)]
    sizes = [_aligned(start, core, width) for width in widths]
    return Traffic(sum(sizes) * item_size, sum(size > 0 for size in sizes))


# ---- hierarchical: rings within nodes and across them; rank = node · local + place ----


class Levels(NamedTuple):
    """What a rank sends within its own node, and across to other nodes."""

    within: Traffic
    across: Traffic


def hierarchical_reduce_scatter(elements: int, item_size: int, nodes: int, local: int, rank: int) -> Levels:
    """Within: all but the share of the rank's place, S·(L−1)/L. Across: that share but cᵣ, S/L·(N−1)/N."""
    place = rank % local
    shares = [_share(elements, nodes, local, other) for other in range(local) if other != place]
    own = [chunk_size(elements, nodes * local, node * local + place) for node in range(nodes) if node != rank // local]
    return Levels(_together(shares, item_size), _together(own, item_size))


def hierarchical_all_gather(elements: int, item_size: int, nodes: int, local: int, rank: int) -> Levels:
    """Across: the share of the rank's place but the next node's chunk. Within: all but the next place's share."""
    node, place = divmod(rank, local)
    shares = [_share(elements, nodes, local, other) for other in range(local) if other != (place + 1) % local]
    others = [other for other in range(nodes) if other != (node + 1) % nodes]
    own = [chunk_size(elements, nodes * local, other * local + place) for other in others]
    return Levels(_together(shares, item_size), _together(own, item_size))


def hierarchical_all_reduce(elements: int, item_size: int, nodes: int, local: int, rank: int) -> Levels:
    """Within: a ring's reduce-scatter and all-gather of S over L ranks. Across: a ring's all-reduce of S/L, N nodes."""
    node, place = divmod(rank, local)
    within = ring_all_reduce(elements, item_size, local, place)
    return Levels(within, ring_all_reduce(chunk_size(elements, local, place), item_size, nodes, node))


def hierarchical_broadcast(elements: int, item_size: int, nodes: int, local: int, rank: int, source: int = 0) -> Levels:
    """Across: a ring's broadcast among the ranks at the source's place. Within: one from that place on every node."""
    node, place = divmod(rank, local)
    across = ring_broadcast(elements, item_size, nodes, node, source // local) if place == source % local else NOTHING
    return Levels(ring_broadcast(elements, item_size, local, place, source % local), across)


def _share(elements: int, nodes: int, local: int, place: int) -> int:
    """Elements of all chunks of ranks at this place of their node."""
    longer = max(0, -((place - elements % (nodes * local)) // local))  # nodes on which node·L + place < elements mod n
    return nodes * (elements // (nodes * local)) + longer


def _together(sizes: list[int], item_size: int) -> Traffic:
    return Traffic(sum(sizes) * item_size, sum(size > 0 for size in sizes))


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


def tree_broadcast_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """⌈log2 n⌉(α + βS), and the same for the reduce."""
    return rounds(ranks) * (alpha + beta * size)


def tree_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2⌈log2 n⌉(α + βS)."""
    return 2 * tree_broadcast_time(size, ranks, alpha, beta)


def halving_all_reduce_time(size: float, ranks: int, alpha: float, beta: float) -> float:
    """2 log2 m · α + 2(m−1)/m · βS, and 2(α + βS) more where n is no power of two."""
    cores = 1 << (ranks.bit_length() - 1)
    folding = 2 * (alpha + beta * size) if cores < ranks else 0.0
    return 2 * rounds(cores) * alpha + 2 * (cores - 1) / cores * beta * size + folding


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

    Raises:
        ValueError: `operation` is unknown.
    """
    if operation not in _BUS_FACTORS:
        raise ValueError(f"operation={operation!r} is unknown; use one of {', '.join(_BUS_FACTORS)}")
    return size / seconds * _BUS_FACTORS[operation](ranks)
