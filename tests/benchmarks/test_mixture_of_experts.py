"""The comparisons run, and both sides do the same work; which is faster is no matter here."""

from __future__ import annotations

import torch

from minitrain.benchmarks import mixture_of_experts as benchmark


def measure(world):
    return benchmark.measure(world, (2, 3), sizes=(8, 16), repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == (
        ["CPU time", "wall clock", "CPU time", "CPU time", "CPU time"] * 2 + ["CPU time", "wall clock"] * 2
    )
    assert all(row.against.startswith("a loop over ") for row in rows[:10])
    assert all(row.against == "all experts on every rank" for row in rows[10:])
    assert rows == others
    assert benchmark.TARGETS == {8: 1.1, 32: 2.5}


def same_work(world):
    loop, grouped = benchmark._products(world, 3, 20, 8, torch.float32)
    torch.testing.assert_close(loop(), grouped())
    loop, grouped = benchmark._dropless(world, 3, 20, 8, torch.float32)
    form, other = loop.args[0], grouped.args[0]
    torch.testing.assert_close(form(), other())
    loop(), grouped()
    spread, everywhere = (benchmark._step(world, 3, 16, 8, torch.float64, name) for name in ("spread", "everywhere"))
    spread(), everywhere()
    theirs = dict(everywhere.args[0].module.named_parameters())
    for name, parameter in spread.args[0].module.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12)


def test_both_sides_compute_the_same(ranks):
    ranks(2).run(same_work)
