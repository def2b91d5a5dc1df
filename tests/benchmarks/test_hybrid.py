"""The comparisons run, and all sides do the same work; which is faster is no matter here."""

from __future__ import annotations

import torch

from minitrain.benchmarks import hybrid as benchmark
from minitrain.recommender.click import Clicks


def measure(world):
    return benchmark.measure(world, ids=20, batch=12, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, *others = ranks(3).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["wall clock", "CPU time"] * 2
    assert [row.against for row in rows] == ["DDP, whole tables (gloo)"] * 2 + ["servers, 1 workers"] * 2
    assert others == [rows] * 2
    assert len(ranks(2).run(measure)[0]) == 2


def same_work(world):
    data = Clicks(ids=20)
    batches = [data.batch(step, 12) for step in range(2)]
    found = []
    for way in (benchmark._hybrid, benchmark._served):
        shards = benchmark._shards(world, data)
        step = way(world, data, batches, shards)
        for _ in range(3):
            step()
        found.append({name: table.contents() for name, table in shards.items()})
    return found


def test_both_sides_train_the_same_tables(ranks):
    def together(way):
        return {
            (name, key): row
            for of_rank in found
            for name, (ids, values) in of_rank[way].items()
            for key, row in zip(ids.tolist(), values, strict=True)
        }

    found = ranks(3).run(same_work)
    ours, theirs = together(0), together(1)
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for key, row in ours.items():
        torch.testing.assert_close(theirs[key], row, rtol=1e-4, atol=1e-6)
