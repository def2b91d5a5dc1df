"""The costs of a vocabulary cut into parts against sums done by hand, and for any sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import vocabulary as costs

few = st.integers(1, 9)


def test_by_hand():
    # GPT-2's 50,257 tokens in multiples of 128 rows on each of eight ranks: 50 times 1024 (Shoeybi et al. 2019, §5.1).
    assert costs.padded(50257, 8, 128) == 51200
    assert costs.padded(50257, 4) == 50260
    # Seven tokens on three ranks: 3 + 3 + 1, and two rows of padding.
    assert [costs.real_rows(7, 3, rank) for rank in range(3)] == [3, 3, 1]
    assert costs.table_bytes(7, 5, 3) == 4 * 5 * 3
    # Ten tokens on three ranks: each sends its 3 · 10 numbers of 4 bytes to two others, on the ring one hop at a time.
    assert costs.loss_traffic(10, 3, 0) == (2 * 3 * 10 * 4, 2)
    # And a row of 9 logits for each of 10 tokens: two thirds of it.
    assert costs.gathered_logits_traffic(10, 7, 3, 0) == (2 * 30 * 4, 2)


@given(st.integers(1, 400), few, st.integers(1, 4))
def test_padding_is_the_least_that_fits(vocabulary, ranks, multiple):
    padded = costs.padded(vocabulary, ranks, multiple)
    assert padded % (ranks * multiple) == 0
    assert vocabulary <= padded < vocabulary + ranks * multiple
    held = costs.rows(vocabulary, ranks, multiple)
    real = [costs.real_rows(vocabulary, ranks, rank, multiple) for rank in range(ranks)]
    assert sum(real) == vocabulary
    assert all(0 <= count <= held for count in real)
    assert real == sorted(real, reverse=True)
