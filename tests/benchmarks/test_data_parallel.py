"""The comparison with DDP runs and says what was compared; which is faster is no matter for a test."""

from __future__ import annotations

import torch

from minitrain.benchmarks import data_parallel
from minitrain.benchmarks.data_parallel import _ddp, _step
from minitrain.data_parallel import DataParallel
from minitrain.models import GPTConfig

TINY = GPTConfig(vocabulary=11, positions=4, layers=1, hidden=4, heads=1)


def measure(world):
    return data_parallel.measure(world, TINY, batch=1, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["CPU time", "wall clock"] * 2
    assert all(row.against == "DDP (gloo)" and row.ours > 0 and row.theirs > 0 for row in rows)
    assert [row.target for row in rows] == [1.02, None] * 2
    assert rows == others


def same_work(world):
    """What is timed is the same training on both sides."""
    steps = [_step(world, TINY, 1, 25.0, wrap) for wrap in (DataParallel, _ddp)]
    for step in steps:
        step()
        step()
    ours, theirs = (step.args[0].module.parameters() for step in steps)
    return all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True))


def test_both_sides_train_alike(ranks):
    assert ranks(2).run(same_work) == [True, True]
