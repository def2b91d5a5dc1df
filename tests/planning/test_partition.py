"""Chains on chains: all cuts tried, and bad input."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import planning as costs
from minitrain.lessons.planning.partition import stage_times
from minitrain.planning.partition import partition
from tests.planning.all_chains import CHAINS


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 2), 3), r"p=3 stages need a layer each, and there are 2; use 1 to 2"),
        (((1, 2), 0), "p=0 stages"),
        (((1, -2), 1), r"a layer takes less than 0 seconds: seconds=\(1, -2\)"),
        (((1, 2), 2, (1,)), r"messages=\(1,\) need a number from 0 on for each layer"),
        (((1, 2), 2, (1, -1)), "messages="),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(AssertionError, match=message):
        partition(*arguments)
