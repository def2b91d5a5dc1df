"""Chains on chains: all cuts tried."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import planning as costs
from minitrain.lessons.planning.partition import stage_times
from minitrain.planning.partition import partition

CHAINS = tuple(product((1, 2, 3), repeat=8))  # 6,561


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_all_chains_of_eight_layers(p):
    for chain in CHAINS:
        time, counts = partition(chain, p)
        assert len(counts) == p and sum(counts) == 8 and min(counts) >= 1
        assert time == max(stage_times(chain, counts))
        if chain[0] == chain[-1] == 2:  # 729 of them, since it takes long
            assert time == costs.best_cut(chain, p)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.data())
def test_with_messages(layers, data):
    seconds, messages = zip(*layers, strict=True)
    p = data.draw(st.integers(1, len(layers)))
    time, counts = partition(seconds, p, messages)
    sent = [messages[end - 1] for end in accumulate(counts[:-1])]
    assert time == costs.best_cut(seconds, p, messages) == max(stage_times(seconds, counts) + sent)
