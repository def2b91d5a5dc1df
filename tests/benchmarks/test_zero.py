"""The comparison with torch's sharding runs and says what was compared; which is faster is no matter for a test."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.benchmarks import zero
from minitrain.models import GPTConfig

TINY = GPTConfig(vocabulary=11, positions=4, layers=2, hidden=4, heads=1)


def measure(world):
    return zero.measure(world, TINY, batch=1, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["CPU time", "wall clock"] * 3
    assert [row.target for row in rows] == [1.02, None, 0.95, None, 0.95, None]
    assert rows[0].against == "ZeroRedundancyOptimizer (gloo)" and "without" in rows[2].against
    assert all(row.ours > 0 and row.theirs > 0 for row in rows)
    assert rows == others


def test_four_ranks_are_two_nodes_as_well(ranks):
    *_, cpu, wall = ranks(4).run(measure)[0]
    assert cpu.what == "a GPT's step, ZeRO stage 3 in 2 nodes, 4 ranks, CPU time" and cpu.target == 0.95
    assert cpu.against == wall.against == "FSDP2 on a 2-D mesh (gloo)"


def same_work(world, stage):
    """What is timed is the same training on both sides."""
    ours, theirs = (zero._gpt(world, TINY) for _ in range(2))
    their_way = partial(zero._fsdp, reshard=stage == 3) if stage > 1 else zero._zero_redundancy
    tokens = zero._tokens(world, TINY, 1)
    for step in (zero._ours(stage, ours), their_way(theirs)):
        step(tokens)
        step(tokens)
    if stage == 3:
        return True  # nobody has whole parameters; tests/zero compares them
    expected = [p if stage == 1 else p.full_tensor() for p in theirs.parameters()]
    for found, its in zip(ours.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), its.detach(), rtol=1e-5, atol=1e-6)
    return True


def test_both_sides_train_alike(ranks):
    for stage in (1, 2, 3):
        assert ranks(2).run(same_work, stage) == [True, True]
