"""The costs of context parallelism, worked out by hand."""

from __future__ import annotations

from minitrain.costs import context_parallel as costs


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
