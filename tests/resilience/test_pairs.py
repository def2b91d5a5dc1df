"""Faulty nodes: all sets of them, and messages that arrive spoilt."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.comm.messages import rank_and_size
from minitrain.resilience.pairs import exchange_in_pairs, find, pairings, product


@pytest.mark.parametrize("nodes", range(1, 10))
def test_each_two_nodes_meet_once(nodes):
    rounds = list(pairings(range(nodes)))
    for pairs in rounds:
        members = [node for pair in pairs for node in pair]
        assert len(set(members)) == len(members) >= nodes - 1
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(nodes), 2))


def test_a_link_alone_accuses_no_node():
    # Nodes 0 and 3 cannot reach each other, but each reaches all others.
    assert find(range(4), lambda pairs: [set(pair) != {0, 3} for pair in pairs]) == []


def in_a_group(world):
    from minitrain.comm.groups import new_group

    group = new_group([3, 1, 2])
    if world.rank == 0:
        return None
    tensor = torch.ones(3) + (world.rank == 2)
    return rank_and_size(group)[0], find(range(3), lambda pairs: exchange_in_pairs(pairs, tensor, group))


def test_a_group_of_ranks(ranks):
    found = ranks(4).run(in_a_group)[1:]
    (place_of_2, _) = found[1]
    assert [answer for _, answer in found] == 3 * [[place_of_2]]


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
