"""The costs of context parallelism: bytes sent, activations kept, and the work of each rank under a causal mask.

Exact where n ranks (r is one) do not divide the s tokens of a sequence. A token has `width` = batch · heads · d
elements in each of Q, K, V and the output, of w bytes (`item`); S_K = S_V = s · width · w.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, chunk_size, chunk_start

# ---- ring attention and zigzag ----


def ring_forward(seq: int, width: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """(n−1)/n · (S_K + S_V) in n−1 messages: K and V of all chunks but the next rank's (Liu et al. 2023, §3)."""
    return _hops(seq, chunk_size(seq, ranks, (rank + 1) % ranks), width, ranks, item)


def zigzag_forward(seq: int, width: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """As `ring_forward`, where a rank holds chunks r and 2n−1−r of 2n."""
    return _hops(seq, sum(_held(seq, ranks, (rank + 1) % ranks)), width, ranks, item)


def gradients_home(seq: int, width: int, ranks: int, item: int = 4) -> Traffic:
    """S_K + S_V in n messages: the gradients of K and V, in their own dtype, over n hops (Liu et al. 2023, §3)."""
    return Traffic(2 * seq * width * item, ranks) if ranks > 1 else NOTHING


def _hops(seq: int, last: int, width: int, ranks: int, item: int) -> Traffic:
    """Of all tokens but the `last` ones, K and V, in n−1 messages."""
    return Traffic(2 * (seq - last) * width * item, ranks - 1)


def ring_kept(tokens: int, width: int, d: int, item: int = 4) -> int:
    """Bytes kept on a rank for backward: Q, K, V, output, a number per query and head (Dao 2023, §3.1)."""
    return (4 * width + width // d) * tokens * item


def ring_blocks(seq: int, ranks: int, rank: int) -> int:
    """(r+1)(s/n)²: scores that rank r computes for each sequence and head, without blocks that the mask hides."""
    size = chunk_size(seq, ranks, rank)
    return size * (chunk_start(seq, ranks, rank) + size)


def zigzag_blocks(seq: int, ranks: int, rank: int) -> int:
    """(2n+1)(s/2n)² on every rank: chunk r meets r+1, chunk 2n−1−r meets 2n−r (Grattafiori et al. 2024, §3.3.2)."""
    return sum(ring_blocks(seq, 2 * ranks, chunk) for chunk in (rank, 2 * ranks - 1 - rank))


def ring_causal_time(ranks: int) -> float:
    """n − 1/2 blocks of (s/n)²: the last rank's time with contiguous chunks, half of the diagonal block left out."""
    return ranks - 0.5


def zigzag_causal_time(ranks: int) -> float:
    """n/2 on every rank, (2n−1)/n times less than `ring_causal_time`: 2n−1 blocks and two halves of (s/2n)²."""
    return ranks / 2


def ring_time(ranks: int, block: float, message: float) -> float:
    """(n−1) · max(block, message) + block: seconds without a mask; messages are hidden if block ≥ message.

    `block`: seconds of a block's computing; `message`: seconds to send a chunk's K and V (Liu et al. 2023, §3).
    """
    return (ranks - 1) * max(block, message) + block


def _held(seq: int, ranks: int, rank: int) -> tuple[int, int]:
    return chunk_size(seq, 2 * ranks, rank), chunk_size(seq, 2 * ranks, 2 * ranks - 1 - rank)


# ---- Ulysses and all-gather ----
#
# a query heads, g key heads, d elements of each, b sequences: S_Q = b·a·s·d·w and S_K = S_V = b·g·s·d·w.


class Attention(NamedTuple):
    """a, g, s, d, b and w of an attention, of all ranks together, which divide s; values have as many heads as keys."""

    heads: int
    key_heads: int
    seq: int
    head: int
    batch: int = 1
    item: int = 2

    def bytes(self, heads: int) -> int:
        """The size of a tensor with that many heads: S_Q with a, S_K with g."""
        return self.batch * heads * self.seq * self.head * self.item


def repeated_key_heads(key_heads: int, ranks: int) -> int:
    """lcm(g, n): the key heads that Ulysses sends, the fewest copies of each that n ranks can divide."""
    return math.lcm(key_heads, ranks)


def ulysses(sizes: Attention, ranks: int) -> Traffic:
    """(n−1)/n² · (2·S_Q + 2·S_K·lcm(g, n)/g) in 4(n−1) messages, forward; the same backward.

    Jacobs et al. 2023, §3.2, which writes 4Nh/P for P ranks, (n−1)/n taken as 1 and as many key heads as heads.
    """
    sent = 2 * sizes.heads + 2 * repeated_key_heads(sizes.key_heads, ranks)
    return Traffic(sizes.bytes(sent) * (ranks - 1) // ranks**2, 4 * (ranks - 1))


def gather(sizes: Attention, ranks: int) -> Traffic:
    """(n−1)/n · (S_K + S_V) in 2(n−1) messages, forward; as much backward (after Grattafiori et al. 2024, §3.3.2)."""
    return Traffic(sizes.bytes(2 * sizes.key_heads) * (ranks - 1) // ranks, 2 * (ranks - 1))


def gathered(sizes: Attention) -> int:
    """S_K + S_V: what each rank holds of K and V until backward, for any number of ranks."""
    return sizes.bytes(2 * sizes.key_heads)


def ring_step(sizes: Attention, ranks: int) -> int:
    """(3n−2)/n · (S_K + S_V): bytes of a ring, forward and backward, if gradients have the dtype of K and V."""
    width = sizes.batch * sizes.key_heads * sizes.head
    there = ring_forward(sizes.seq, width, ranks, 0, sizes.item).bytes
    return 2 * there + gradients_home(sizes.seq, width, ranks, sizes.item).bytes


def gather_over_ulysses(heads: int, key_heads: int, ranks: int) -> float:
    """n·g / (a + lcm(g, n)): bytes of a gather over those of Ulysses, each way, for any sequence."""
    return ranks * key_heads / (heads + repeated_key_heads(key_heads, ranks))


def crossing(heads: int, key_heads: int) -> float:
    """The number of ranks above which Ulysses sends less than a gather (forward also a ring): n·g = a + lcm(g, n).

    Where n divides g, n = a/g + 1, which is at most g if a ≤ g(g−1). Where n is a multiple of g, n = a/(g−1); infinite
    for one key head. For other n there is `gather_over_ulysses`.
    """
    if heads <= key_heads * (key_heads - 1):
        return heads / key_heads + 1
    return heads / (key_heads - 1) if key_heads > 1 else math.inf


def least(sizes: Attention, ranks: int) -> str:
    """Which of "ring", "ulysses" and "gather" sends the fewest bytes, forward and backward; the first of equals."""
    sent = {"gather": 2 * gather(sizes, ranks).bytes, "ring": ring_step(sizes, ranks)}
    if sizes.heads % ranks == 0:
        sent["ulysses"] = 2 * ulysses(sizes, ranks).bytes
    return min(sent, key=lambda mode: sent[mode])
