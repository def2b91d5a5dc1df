"""The costs of context parallelism: bytes sent, activations kept, and the work of each rank under a causal mask.

Notation: n ranks, r one of them; s tokens in the whole sequence; a token has `width` = batch · heads · d elements each
in Q, K, V and the output; S_K = S_V = s · width · w bytes, w bytes per element. Chunk sizes are the real ones, so that
all counts are exact where s does not divide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, chunk_size, chunk_start

# ---- ring attention and zigzag ----


def ring_forward(seq: int, width: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """K and V over n−1 hops: a rank sends all chunks but the next rank's, (n−1)/n · (S_K + S_V) in n−1 messages.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers", §3; exact sizes derived.
    """
    return _hops(seq, chunk_size(seq, ranks, (rank + 1) % ranks), width, ranks, item)


def zigzag_forward(seq: int, width: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """As `ring_forward`, where a rank holds chunks r and 2n−1−r of 2n.

    Source: as `ring_forward`.
    """
    return _hops(seq, sum(_held(seq, ranks, (rank + 1) % ranks)), width, ranks, item)


def gradients_home(seq: int, width: int, ranks: int, item: int = 4) -> Traffic:
    """The gradients of K and V over n hops: each rank sends those of all chunks, S_K + S_V in n messages.

    Args:
        seq: Tokens of the whole sequence.
        width: Elements per token in K, and as many in V.
        ranks: Their number; one rank sends nothing.
        item: Bytes per element of the dtype in which gradients are added up, which may be wider than that of K and V.

    Source: Liu et al. 2023, §3; the number of hops derived.
    """
    return Traffic(2 * seq * width * item, ranks) if ranks > 1 else NOTHING


def _hops(seq: int, last: int, width: int, ranks: int, item: int) -> Traffic:
    """Of all tokens but the `last` ones, K and V, in n−1 messages."""
    return Traffic(2 * (seq - last) * width * item, ranks - 1)


def ring_kept(tokens: int, width: int, d: int, item: int = 4) -> int:
    """Bytes that attention keeps on a rank for backward: Q, K, V, the output, and one number per query and head.

    With s/n tokens this is 1/n of what one device keeps. The s²/n scores are not kept.

    Source: Dao 2023, "FlashAttention-2", §3.1.
    """
    return (4 * width + width // d) * tokens * item


def ring_blocks(seq: int, ranks: int, rank: int) -> int:
    """Scores that rank r computes, for each sequence and head, if blocks that the mask hides are left out.

    A chunk of queries meets its own chunk of keys and all before it, so (r+1) (s/n)².

    Source: derived.
    """
    size = chunk_size(seq, ranks, rank)
    return size * (chunk_start(seq, ranks, rank) + size)


def zigzag_blocks(seq: int, ranks: int, rank: int) -> int:
    """As `ring_blocks`, with chunks r and 2n−1−r of 2n: (r+1) + (2n−r) = 2n+1 blocks of (s/2n)² on every rank.

    Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2, for the chunks; the count derived.
    """
    return sum(ring_blocks(seq, 2 * ranks, chunk) for chunk in (rank, 2 * ranks - 1 - rank))


def ring_block_share(ranks: int, rank: int) -> float:
    """Rank r's share of all computed blocks: 2(r+1) / (n(n+1)), where an even division gives 1/n.

    Source: derived from `ring_blocks`.
    """
    return 2 * (rank + 1) / (ranks * (ranks + 1))


def ring_area_share(ranks: int, rank: int) -> float:
    """Rank r's share of the scores that the mask leaves, as area: (2r+1)/n². A block on the diagonal is half a block.

    Source: derived: r whole blocks and a half, of n²/2.
    """
    return (2 * rank + 1) / ranks**2


def ring_causal_time(ranks: int) -> float:
    """Time of causal attention with contiguous chunks, in blocks of (s/n)²: that of the last rank, n − 1/2.

    A kernel is assumed that leaves out the hidden half of a block on the diagonal, and messages that take no time.

    Source: derived from `ring_area_share`.
    """
    return ranks - 0.5


def zigzag_causal_time(ranks: int) -> float:
    """As `ring_causal_time`, for zigzag: n/2 on every rank, (2n−1)/n times less.

    Source: derived: 2n−1 whole blocks and two halves of (s/2n)².
    """
    return ranks / 2


def ring_time(ranks: int, block: float, message: float) -> float:
    """Time of attention without a mask: (n−1) · max(block, message) + block. Messages are hidden if block ≥ message.

    Args:
        ranks: Their number.
        block: Seconds in which a rank computes a block.
        message: Seconds in which K and V of a chunk are sent.

    Source: Liu et al. 2023, §3, for the condition; the time derived.
    """
    return (ranks - 1) * max(block, message) + block


def hiding_chunk(width: int, item: int, beta: float, score: float) -> float:
    """Tokens per rank from which messages are hidden: a chunk of c tokens needs score · c² ≥ beta · 2c · width · item.

    Args:
        width: Elements per token in K, and as many in V.
        item: Bytes per element.
        beta: Seconds per byte of a link.
        score: Seconds per score of a block, for all sequences and heads together.

    Source: Liu et al. 2023, §3 ("c ≥ F/B", from 4dc² operations and 4cd bytes).
    """
    return 2 * width * item * beta / score


def _held(seq: int, ranks: int, rank: int) -> tuple[int, int]:
    """Tokens of the early and the late chunk of a zigzag's rank."""
    return chunk_size(seq, 2 * ranks, rank), chunk_size(seq, 2 * ranks, 2 * ranks - 1 - rank)


# ---- Ulysses and all-gather ----
#
# a query heads, g key heads, d elements of each, b sequences: S_Q = b·a·s·d·w and S_K = S_V = b·g·s·d·w.


class Attention(NamedTuple):
    """The sizes of an attention, of all ranks together.

    Attributes:
        heads: Query heads, a.
        key_heads: Key heads, which are also those of the values, g.
        seq: Tokens of a sequence, s; a multiple of the ranks.
        head: Elements of a head, d.
        batch: Sequences, b.
        item: Bytes per element, w.
    """

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
    """lcm(g, n): the key heads that Ulysses sends, the fewest copies of each that n ranks can divide.

    It divides the query heads wherever g and n do. Derived.
    """
    return math.lcm(key_heads, ranks)


def ulysses(sizes: Attention, ranks: int) -> Traffic:
    """(n−1)/n² · (2·S_Q + 2·S_K·lcm(g, n)/g) in 4(n−1) messages, forward; the same backward.

    Of its 1/n of a tensor, a rank keeps 1/n and sends the rest. The tensors are Q, K, V and the output. Jacobs et al.
    2023, §3.2, which writes 4Nh/P for P ranks, (n−1)/n taken as 1 and as many key heads as heads.
    """
    sent = 2 * sizes.heads + 2 * repeated_key_heads(sizes.key_heads, ranks)
    return Traffic(sizes.bytes(sent) * (ranks - 1) // ranks**2, 4 * (ranks - 1))


def gather(sizes: Attention, ranks: int) -> Traffic:
    """(n−1)/n · (S_K + S_V) in 2(n−1) messages, forward; the same backward, where gradients of K and V are
    reduce-scattered and K and V are kept. Derived for rings, from Grattafiori et al. 2024, §3.3.2.
    """
    return Traffic(sizes.bytes(2 * sizes.key_heads) * (ranks - 1) // ranks, 2 * (ranks - 1))


def gathered(sizes: Attention) -> int:
    """S_K + S_V: what each rank holds of K and V until backward, for any number of ranks. Derived."""
    return sizes.bytes(2 * sizes.key_heads)


def ring_step(sizes: Attention, ranks: int) -> int:
    """(3n−2)/n · (S_K + S_V): the bytes of a ring, forward and backward, if gradients have the dtype of K and V.

    Forward as much as a gather. Backward as much again, and the gradients over n hops: more than 3/2 of a gather's
    bytes for any n, so that a ring never sends least. It holds 1/n of K and V instead. Derived.
    """
    width = sizes.batch * sizes.key_heads * sizes.head
    there = ring_forward(sizes.seq, width, ranks, 0, sizes.item).bytes
    return 2 * there + gradients_home(sizes.seq, width, ranks, sizes.item).bytes


def gather_over_ulysses(heads: int, key_heads: int, ranks: int) -> float:
    """n·g / (a + lcm(g, n)): bytes of a gather over those of Ulysses, each way, for any sequence.

    The gather's 2·g·(n−1)/n over Ulysses' 2·(a + lcm(g, n))·(n−1)/n². Derived.
    """
    return ranks * key_heads / (heads + repeated_key_heads(key_heads, ranks))


def crossing(heads: int, key_heads: int) -> float:
    """The number of ranks above which Ulysses sends less than a gather: n·g = a + lcm(g, n), solved for n.

    Where n divides g, lcm = g, so that n = a/g + 1, which is at most g if a ≤ g(g−1). Where n is a multiple of g,
    lcm = n, so that n = a/(g−1); with one key head, Ulysses never sends less. For other n there is
    `gather_over_ulysses`. In forward it is the crossing with a ring as well. Derived.
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
