"""The comparison of decoding runs; which is faster is no matter here."""

from __future__ import annotations

from minitrain.benchmarks import inference


def measure(world):
    rows = inference.measure(world, (2, 8, 5, 3), repeats=1)
    return [row.what for row in rows]


def test_one_sequence_and_eight(ranks):
    whats = [f"3 tokens after a prompt of 5, {batch} sequences, with a cache, 2 ranks" for batch in (1, 8)]
    assert ranks(2).run(measure) == [whats, whats]
