"""The comparison with torch's checkpoint runs, and both sides do the same work; which is faster is no matter here."""

from __future__ import annotations

import torch

from minitrain.benchmarks import recomputation
from minitrain.models import GPTConfig
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full.checkpoint import checkpoint

TINY = GPTConfig(vocabulary=11, positions=4, layers=1, hidden=4, heads=1)


def measure(world):
    return recomputation.measure(world, TINY, batch=1, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["CPU time", "wall clock"] * 2
    assert all(row.against.startswith("torch's, use_reentrant=") for row in rows[:2])
    assert all(row.against == "torch's, use_reentrant=True" for row in rows[2:])
    assert [row.target for row in rows] == [1.0, None, None, None]
    assert rows == others


def same_work(world):
    models = []
    for each in (checkpoint, early_stop.checkpoint, *recomputation.TORCHS.values()):
        step = recomputation._step(world, TINY, 1, each)
        step()
        step()
        models.append(step.args[0])
    first, *others = ([p.grad for p in model.parameters()] for model in models)
    return all(torch.equal(mine, its) for other in others for mine, its in zip(first, other, strict=True))


def test_both_sides_compute_the_same(ranks):
    assert ranks(2).run(same_work) == [True, True]
