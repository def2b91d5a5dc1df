"""The comparison with a loop runs, and both sides do the same; which is faster is no matter for a test."""

from __future__ import annotations

import torch

from minitrain.benchmarks import embedding
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table


def test_the_loop_does_the_same():
    table, loop = Table(3, SGD(embedding.RATE)), embedding.LoopTable(3, torch.device("cpu"))
    ids, gradients = torch.tensor([4, -4, 9]), torch.ones(3, 3)
    for each in (table, loop):
        each.lookup(ids)
        each.update(ids[:2], gradients[:2])
    assert torch.equal(table.lookup(ids), loop.lookup(ids))


def test_it_runs(ranks):
    rows = ranks(2).run(embedding.measure, ids=20, rows=60, repeats=2)[0]
    assert [row.what.split(",")[0] for row in rows] == [
        "lookup of 20 ids",
        "update of 20 ids",
        "20 ids of each worker looked up and pushed",
    ]
    assert all(row.ours > 0 and row.theirs > 0 for row in rows)
