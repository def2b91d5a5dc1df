"""Which tokens ranks hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.context_parallel.full.places import MODES, chunks, held


@given(st.sampled_from(MODES), st.integers(1, 5), st.integers(0, 30))
def test_every_token_is_on_one_rank_and_chunks_are_nearly_equal(mode, ranks, more):
    seq = 2 * ranks + more
    everyone = [held(mode, seq, rank, ranks) for rank in range(ranks)]
    assert torch.cat(everyone).sort().values.tolist() == list(range(seq))
    assert all(torch.equal(each, each.sort().values) for each in everyone)
    lengths = [len(chunk) for rank in range(ranks) for chunk in chunks(mode, seq, rank, ranks)]
    assert len(lengths) == (2 * ranks if mode == "zigzag" else ranks)
    assert max(lengths) - min(lengths) <= 1


def test_zigzag_gives_a_rank_a_chunk_from_the_front_and_one_from_the_back():
    assert held("zigzag", 12, 0, 3).tolist() == [0, 1, 10, 11]
    assert held("zigzag", 12, 2, 3).tolist() == [4, 5, 6, 7]
    assert held("zigzag", 7, 1, 2).tolist() == [2, 3, 4, 5], "chunks of 2, 2, 2 and 1"
    assert held("ring", 7, 1, 2).tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rings", 8, 0, 2), r"mode='rings' is unknown; use one of \('ring', 'zigzag', 'ulysses', 'gather'\)"),
        (("zigzag", 7, 0, 4), "seq=7 is too short for 4 ranks, .* use at least 8 tokens, or at most 3 ranks"),
        (("gather", 8, 2, 2), "rank=2 is no rank of 2; use 0 to 1"),
    ],
)
def test_what_cannot_be_divided_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        held(*arguments)
