"""The comparison of context parallelism runs; which is faster is no matter here."""

from __future__ import annotations

import pytest

from minitrain.benchmarks import context_parallel

SIZES = (4, 12, 8)  # heads, tokens, width of a head


def measure(world):
    rows = context_parallel.measure(world, SIZES, repeats=1)
    return [(row.what, row.against, row.target) for row in rows]


@pytest.mark.parametrize("size", (2, 3))
def test_every_mode_is_compared_on_cpus(ranks, size):
    """On three ranks Ulysses cannot divide the four heads."""
    rows, *others = ranks(size).run(measure)
    modes = ["ring", "zigzag", "ulysses", "gather"] if size == 2 else ["ring", "zigzag", "gather"]
    assert [what for what, _, _ in rows] == [
        f"causal attention, {mode}, {size} sequences of 12 tokens, {size} ranks, {measured}"
        for mode in modes
        for measured in ("CPU time", "wall clock")
    ]
    assert [target for _, _, target in rows] == [context_parallel.TARGET if size == 2 else None, None] * len(modes)
    assert all(other == rows for other in others)
