"""tree: reduce to any rank; and the picture beside the ring."""

from __future__ import annotations

import pytest
import torch

from minitrain.collectives.full import tree
from minitrain.comm import Ledger
from minitrain.costs import communication as costs
from tests.collectives import verbs


def reduced(world):
    """The sum on each root, and what each rank sent for it."""
    results = []
    for to in range(world.size):
        tensor = verbs.brought(world.rank, (2, 3), torch.int64)
        with Ledger() as ledger:
            tree.reduce(tensor, to).wait()
        total = sum(verbs.brought(rank, (2, 3), torch.int64) for rank in range(world.size))
        right = world.rank != to or torch.equal(tensor, total)
        sent = (ledger.sent, ledger.messages)
        results.append(right and sent == costs.tree_reduce(6, 8, world.size, world.rank, to))
    return results


@pytest.mark.parametrize("size", verbs.WORLD_SIZES)
def test_reduce_ends_on_the_rank_that_is_named(ranks, size):
    assert ranks(size).run(reduced) == [[True] * size] * size


def unknown(world):
    try:
        tree.reduce(torch.ones(2), to=-1)
    except ValueError as error:
        return str(error)


def test_reduce_to_an_unknown_rank_is_refused(ranks):
    for said in ranks(2).run(unknown):
        assert said == "reduce: to=-1 is no rank of this group of 2; use 0 to 1"


def sent_by_the_source(world):
    """What each rank sends in a broadcast from each source."""
    right = []
    for source in range(world.size):
        with Ledger() as ledger:
            tree.broadcast(torch.zeros(5), source).wait()
        right.append((ledger.sent, ledger.messages) == costs.tree_broadcast(5, 4, world.size, world.rank, source))
    return right


@pytest.mark.parametrize("size", verbs.WORLD_SIZES)
def test_a_broadcast_from_any_rank_runs_through_the_same_tree(ranks, size):
    assert ranks(size).run(sent_by_the_source) == [[True] * size] * size
