"""The costs of ZeRO against the paper's figures and sums done by hand; the exact ones approach the paper's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import zero as costs
from minitrain.costs.zero import Line

LINES = [Line(10, 4, 3), Line(7, 2, 2), Line(5, 4, 1, trainable=False)]
SIZES = st.lists(st.builds(Line, st.integers(0, 50), st.sampled_from((2, 4)), st.integers(1, 5), st.booleans()))
RANKS = st.integers(1, 7)


def test_the_papers_figure_1():
    # 7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB.
    found = [sum(costs.state_bytes(stage, 7.5e9, 64).values()) / 1e9 for stage in costs.STAGES]
    assert [round(size, 1) for size in found] == [120, 31.4, 16.6, 1.9]


def test_volumes():
    assert [costs.volume(stage, 10) for stage in costs.STAGES] == [20, 20, 20, 30]
    assert [costs.volume(stage, 10, 4) for stage in costs.STAGES] == [20, 20, 50, 120]
    for wrong in (costs.volume, costs.state_bytes):
        with pytest.raises(ValueError, match="stage=4 is unknown"):
            wrong(4, 10, 1)


def test_held_by_hand():
    # On 4 ranks: shards of 3, 2 and 2 elements; 12, 8 and 8 with padding.
    assert [costs.padding(line.elements, 4) for line in LINES] == [2, 1, 3]
    whole, shard = {4: 12 * 4 + 8 * 4, 2: 8 * 2}, {4: 3 * 4 + 2 * 4, 2: 2 * 2}
    states = 8 * (3 + 2) + 2 * 4
    assert costs.held(0, LINES, 4) == {
        "parameters": 10 * 4 + 7 * 2 + 5 * 4,
        "gradients": 10 * 4 + 7 * 2,
        "optimizer states": 8 * 17 + 5 * 4,
    }
    gradients, gradient_shards = 12 * 4 + 8 * 2, 3 * 4 + 2 * 2
    everything = sum(whole.values())
    assert list(costs.held(1, LINES, 4).values()) == [everything, gradients, states]
    assert list(costs.held(2, LINES, 4).values()) == [everything, gradient_shards, states]
    assert list(costs.held(3, LINES, 4).values()) == [sum(shard.values()), gradient_shards, states]
    with pytest.raises(ValueError, match="stage=4 is unknown"):
        costs.held(4, LINES, 4)


@given(st.integers(1, 1000), RANKS, st.sampled_from(costs.STAGES))
def test_where_ranks_divide_the_exact_bytes_are_the_papers(size, ranks, stage):
    elements = size * ranks
    exact = costs.held(stage, [Line(elements, 2)], ranks, 12, 0)
    assert exact == costs.state_bytes(stage, elements, ranks)


@given(SIZES, RANKS, st.integers(1, 4))
def test_a_step_sends_its_volume(lines, ranks, micro_batches):
    for stage in (1, 2, 3):
        trained = [line for line in lines if line.trainable]
        each = [costs.step_traffic(stage, trained, ranks, rank, micro_batches) for rank in range(ranks)]
        padded = sum((line.elements + costs.padding(line.elements, ranks)) * line.item_size for line in trained)
        assert len(set(each)) == 1  # shards are equal, so every rank sends the same
        assert ranks * each[0].bytes == (ranks - 1) * costs.volume(stage, padded, micro_batches)
        full = sum(line.elements > 0 for line in trained)
        assert each[0].messages == (ranks - 1) * costs.volume(stage, full, micro_batches)


def test_traffic_by_hand():
    # Two ranks send half of each padded line (10, and 8 elements); the frozen one (6) is gathered in stage 3 only.
    once = 5 * 4 + 4 * 2
    assert costs.step_traffic(1, LINES, 2, 0, 3) == (2 * once, 4)
    assert costs.step_traffic(2, LINES, 2, 0, 3) == (4 * once, 8)
    assert costs.step_traffic(3, LINES, 2, 0, 3) == (9 * once + 6 * 3 * 4, 18 + 6)
    with pytest.raises(ValueError, match="stage=0 has no lines"):
        costs.step_traffic(0, LINES, 2, 0)


def test_peaks_by_hand():
    lines = [Line(3, 4), Line(8, 4), Line(6, 4), Line(1, 4)]  # on 2 ranks 4, 8, 6 and 2 elements
    assert costs.gradient_peak(lines, 16, 2) == (8 + 6) * 4 + 16
    assert costs.gradient_peak(lines, 16, 2, drain=False) == (4 + 8 + 6 + 2) * 4 + 16
    assert costs.gradient_peak([], 0, 2) == 0
