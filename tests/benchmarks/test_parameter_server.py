"""The benchmark of dense servers runs, and compares what it says."""

from __future__ import annotations

from minitrain.benchmarks.parameter_server import measure
from minitrain.models.config import GPTConfig


def small(world):
    config = GPTConfig(vocabulary=16, positions=8, layers=1, hidden=8, heads=2)
    return measure(world, config, batch=4, repeats=1)


def test_one_row_of_each_clock_for_each_number_of_servers(ranks):
    rows = ranks(3).run(small)[0]
    served = [row.what.partition(", 4 samples, ")[2] for row in rows]
    assert served == [f"{k} of 3 ranks serve, {clock}" for k in (1, 2) for clock in ("CPU time", "wall clock")]
    assert all(row.ours > 0 and row.theirs > 0 and row.against == "the ring (gloo)" for row in rows)


def test_without_a_worker_there_is_nothing_to_compare(ranks):
    assert ranks(1).run(small) == [[]]
