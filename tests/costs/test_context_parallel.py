"""The costs of context parallelism, worked out by hand and added up over ranks."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import context_parallel as costs

RANKS = st.integers(1, 8)


def test_seven_tokens_on_three_ranks():
    # Chunks of 3, 2 and 2 tokens; a token has 5 elements of 4 bytes in K and in V: 40 bytes.
    assert [costs.ring_forward(7, 5, 3, rank) for rank in range(3)] == [(200, 2), (200, 2), (160, 2)]
    # Every rank sends on the gradients of all 7 tokens, of 8 bytes each.
    assert costs.gradients_home(7, 5, 3, 8) == (7 * 80, 3)
    # Six chunks of 2, 1, 1, 1, 1, 1 tokens; ranks hold 2+1, 1+1, 1+1.
    assert [costs.zigzag_forward(7, 5, 3, rank) for rank in range(3)] == [(200, 2), (200, 2), (160, 2)]
    # 3 queries meet 3 keys; 2 meet 5; 2 meet 7.
    assert [costs.ring_blocks(7, 3, rank) for rank in range(3)] == [9, 10, 14]
    # Chunk 0 of 2 queries meets 2 keys, chunks 1 to 5 of one query each meet 3, 4, 5, 6, 7.
    assert [costs.zigzag_blocks(7, 3, rank) for rank in range(3)] == [4 + 7, 3 + 6, 4 + 5]


def test_nothing_is_sent_on_one_rank():
    assert costs.ring_forward(7, 5, 1, 0) == costs.zigzag_forward(7, 5, 1, 0) == costs.gradients_home(7, 5, 1) == (0, 0)


@given(RANKS, st.integers(1, 4), st.integers(1, 5))
def test_where_a_sequence_divides(ranks, chunk, width):
    seq = 2 * chunk * ranks
    for rank in range(ranks):
        both = 2 * seq * width * 4
        assert ranks * costs.ring_forward(seq, width, ranks, rank).bytes == (ranks - 1) * both
        assert costs.zigzag_forward(seq, width, ranks, rank) == costs.ring_forward(seq, width, ranks, rank)
        blocks = [costs.ring_blocks(seq, ranks, each) for each in range(ranks)]
        assert math.isclose(blocks[rank] / sum(blocks), costs.ring_block_share(ranks, rank))
        assert costs.zigzag_blocks(seq, ranks, rank) == (2 * ranks + 1) * chunk**2
    shares = [costs.ring_area_share(ranks, rank) for rank in range(ranks)]
    assert math.isclose(sum(shares), 1)
    # The last rank's share over an equal one is the ratio of the times.
    assert math.isclose(shares[-1] * ranks, costs.ring_causal_time(ranks) / costs.zigzag_causal_time(ranks))


@given(RANKS, st.integers(16, 60))
def test_all_ranks_together_send_every_chunk_but_one(ranks, seq):
    for forward in (costs.ring_forward, costs.zigzag_forward):
        assert sum(forward(seq, 3, ranks, rank).bytes for rank in range(ranks)) == (ranks - 1) * 2 * seq * 3 * 4


def test_time_and_the_chunk_that_hides_messages():
    # Four ranks: three rounds of the slower, then a block without a message.
    assert costs.ring_time(4, 3, 2) == 3 * 3 + 3 and costs.ring_time(4, 2, 3) == 3 * 3 + 2
    # c tokens: c² scores of 1 s, and 2 · c · 3 · 4 bytes of 2 s: as long at c = 48.
    assert costs.hiding_chunk(3, 4, 2, 1) == 48
    assert costs.ring_time(2, 48**2, 2 * 48 * 3 * 4 * 2) == 2 * 48**2


def test_kept_bytes_of_one_token():
    # Two heads of 5 elements: 10 each of Q, K, V and the output, and a number per head.
    assert costs.ring_kept(1, 10, 5, 4) == 4 * (4 * 10 + 2)
