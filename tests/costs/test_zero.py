"""The costs of ZeRO against the paper's figures and volumes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import zero as costs
from minitrain.costs.zero import Line

SIZES = st.lists(st.builds(Line, st.integers(0, 50), st.sampled_from((2, 4)), st.integers(1, 5), st.booleans()))
RANKS = st.integers(1, 7)


def test_volumes():
    assert [costs.volume(stage, 10) for stage in costs.STAGES] == [20, 20, 20, 30]
    assert [costs.volume(stage, 10, 4) for stage in costs.STAGES] == [20, 20, 50, 120]
    for wrong in (costs.volume, costs.state_bytes):
        with pytest.raises(ValueError, match="stage=4 is unknown"):
            wrong(4, 10, 1)
    with pytest.raises(ValueError, match="stage=0 has no lines"):
        costs.step_traffic(0, [], 2, 0)


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
