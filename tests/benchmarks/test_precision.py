"""The comparison of rings in 8 and 16 bits says how many bytes each sends; which is faster is no matter for a test."""

from __future__ import annotations

from minitrain.benchmarks import precision
from minitrain.costs.precision import quantised_ring


def measure(world):
    return precision.measure(world, (1000,), repeats=1)


def test_a_row_says_the_bytes_of_both(ranks):
    (row,), _ = ranks(2).run(measure)
    # Each rank sends one half of 1,000 elements, twice.
    assert row.what == f"all-reduce of 1,000 gradients, {quantised_ring(1000, 2, 0):,} bytes per rank, 2 ranks"
    assert row.against == "a ring in bfloat16, 2,000 bytes"
    assert row.ours > 0
    assert row.theirs > 0
    assert row.target is None
