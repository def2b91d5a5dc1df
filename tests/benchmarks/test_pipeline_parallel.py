"""The comparison with torch's pipelining runs and says what was compared; which is faster is no matter for a test."""

from __future__ import annotations

import torch

from minitrain.benchmarks import pipeline_parallel
from minitrain.benchmarks.pipeline_parallel import THEIRS, _ours, _theirs
from minitrain.models import GPTConfig
from minitrain.pipeline_parallel.schedules import SCHEDULES

TINY = GPTConfig(vocabulary=11, positions=4, layers=4, hidden=4, heads=1, tied=False)


def measure(world):
    return pipeline_parallel.measure(world, TINY, batch=1, microbatches=2, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["CPU time", "wall clock"] * len(THEIRS)
    assert all(row.against == "torch's pipelining (gloo)" and row.ours > 0 and row.theirs > 0 for row in rows)
    assert [row.target for row in rows] == [1.0, None] * len(THEIRS)
    assert rows == others


def same_work(world):
    """What is timed is the same training on both sides; torch divides gradients by m at the end, hence the bound."""
    for name in THEIRS:
        schedule = SCHEDULES[name](world.size, 4, 2 if name == "interleaved" else 1)
        tokens = torch.randint(11, (8, 4), generator=torch.Generator().manual_seed(0))
        ours, theirs = (make(world, TINY, schedule, tokens)() for make in (_ours, _theirs))
        for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-5, atol=1e-7)


def test_both_sides_have_the_same_gradients(ranks):
    ranks(2).run(same_work)
