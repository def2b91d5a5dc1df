"""A constant buffer carries any tensors, in ⌈Ψ/B⌉ rounds, and needs nothing more than itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.comm import Ledger
from minitrain.zero import constant_buffers as technique

SIZES = st.lists(st.integers(0, 40), max_size=8)


@given(SIZES, st.integers(1, 50))
def test_fillings_are_the_tensors_in_their_order(sizes, room):
    tensors = [torch.arange(size) for size in sizes]
    rounds = list(technique.fillings(tensors, room))
    pieces = [piece for filling in rounds for piece in filling]
    assert torch.equal(torch.cat([*pieces, torch.arange(0)]), torch.cat([*tensors, torch.arange(0)]))
    filled = [sum(map(len, filling)) for filling in rounds]
    # All are full but the last, which is not empty.
    assert all(count == room for count in filled[:-1]) and all(filled)
    assert len(rounds) == -(-sum(sizes) // room)
    # Pieces are views: what is written to them arrives in the tensors.
    for piece in pieces:
        piece.fill_(-1)
    assert all((tensor == -1).all() for tensor in tensors)


def wrong(world):
    with Ledger() as ledger:
        with pytest.raises(AssertionError, match="flat view"):
            technique.all_reduce_through(torch.empty(3), [torch.ones(2, 3).t()])
        for buffer in (torch.empty(0), torch.empty(2, 2)):
            with pytest.raises(AssertionError, match="one flat tensor"):
                technique.all_reduce_through(buffer, [torch.ones(2)])
        technique.all_reduce_through(torch.empty(3), [])
    assert not ledger.entries


def test_what_cannot_be_sent_is_refused_before_anything_is(ranks):
    ranks(2).run(wrong)
