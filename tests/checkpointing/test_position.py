"""The position in the data: any numbers of ranks, one after the other, take what one device takes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.checkpointing.position import Position


@given(
    st.integers(1, 40),
    st.integers(1, 17),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=6),
    st.integers(0, 9),
)
def test_ranks_come_and_go(samples, batch, stages, seed):
    alone, position, found = Position(samples, batch, seed), 0, []
    for ranks, steps in stages:
        each = [Position(samples, batch, seed) for _ in range(ranks)]
        for one in each:
            one.position = position
        for _ in range(steps):
            shares = [one.take(rank, ranks).tolist() for rank, one in enumerate(each)]
            together = [sample for share in shares for sample in share]
            assert together == alone.take(0, 1).tolist()
            found += together
        assert len({one.position for one in each}) == 1
        position = each[0].position
    counts = Counter(found)
    whole, rest = divmod(len(found), samples)
    # Each once per epoch, and as many as the last epoch has begun with once more.
    assert Counter(counts[sample] for sample in range(samples)) == +Counter({whole: samples - rest, whole + 1: rest})


def test_epochs_have_orders_of_their_own_and_a_seed_gives_them_again():
    def orders(seed):
        return [tuple(position.take(0, 1).tolist()) for position in [Position(50, 50, seed)] for _ in range(4)]

    assert len(set(orders(0))) == 4 and orders(0) == orders(0) and orders(0) != orders(3)


def test_bad_input():
    with pytest.raises(AssertionError, match="invalid"):
        Position(1, 0)
    with pytest.raises(AssertionError, match="is none of"):
        Position(3, 2).take(2, 2)
