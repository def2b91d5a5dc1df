"""A constant buffer carries any tensors, in ⌈Ψ/B⌉ rounds, and needs nothing more than itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.comm import Ledger, axes
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


def in_pairs(world):
    """Tensors of any shape, in a group, through a buffer of another dtype."""
    group = axes(dp=2, tp=2)["tp"].get_group()
    mine = [torch.full(shape, world.rank + 1, dtype=torch.bfloat16) for shape in ((3, 4), (), (0, 2), (17,), (2, 2, 2))]
    total = sum(rank + 1 for rank in torch.distributed.get_process_group_ranks(group))
    for size in (1, 5, 38, 100):
        its = [tensor.clone() for tensor in mine]
        technique.all_reduce_through(torch.empty(size, dtype=torch.float64), its, group)
        assert all(torch.equal(tensor, torch.full_like(tensor, total)) for tensor in its)


def test_in_a_group_and_in_fewer_bits(ranks):
    ranks(4).run(in_pairs)


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
