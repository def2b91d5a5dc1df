"""Faulty nodes: all sets of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.resilience.pairs import find, pairings, product


@pytest.mark.parametrize("nodes", range(1, 10))
def test_each_two_nodes_meet_once(nodes):
    rounds = list(pairings(range(nodes)))
    for pairs in rounds:
        members = [node for pair in pairs for node in pair]
        assert len(set(members)) == len(members) >= nodes - 1
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(nodes), 2))


def test_the_product():
    assert product("cpu") and product("cpu", n=1)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_exact_or_undecided(nodes, faulty):
    faulty = {node for node in faulty if node < nodes}

    def test(pairs):
        members = [node for pair in pairs for node in pair]
        assert len(set(members)) == len(members), "a node is in two tests at once"
        return [not faulty & {a, b} for a, b in pairs]

    assert find(range(nodes), test) == (sorted(faulty) if nodes - len(faulty) >= 2 else None)
