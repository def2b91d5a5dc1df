"""The benchmark of stalls runs, and leaves nothing in memory."""

from minitrain.benchmarks import checkpointing
from minitrain.checkpointing.full.memory import ROOT


def measured(world):
    return checkpointing.measure(world, elements=1000, repeats=1)


def test_the_benchmark_of_stalls_runs(ranks):
    before = set(ROOT.glob("minitrain-*"))
    rows = ranks(2).run(measured)[0]
    assert [row.what.split(", ")[1] for row in rows] == ["flash", "asynchronous"]
    assert all(row.ours > 0 and row.theirs > 0 for row in rows)
    assert set(ROOT.glob("minitrain-*")) <= before
