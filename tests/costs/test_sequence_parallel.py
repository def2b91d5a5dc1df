"""The costs of sequence parallelism against those of tensor parallelism, and against the paper's table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import sequence_parallel as costs
from minitrain.costs import tensor_parallel

SMALL = st.integers(1, 6)


@given(SMALL, SMALL, SMALL, st.integers(1, 8))
def test_all_ranks_together_send_what_tensor_parallelism_sends_or_a_quarter_more(batch, shard, width, ranks):
    sizes = batch, shard * ranks, width * ranks
    before = sum(tensor_parallel.layer_traffic(*sizes, ranks, rank).bytes for rank in range(ranks))  # each way
    for keep_gathered, share in ((True, 4), (False, 6)):
        ways = [costs.layer_traffic(*sizes, ranks, rank, keep_gathered) for rank in range(ranks)]
        assert sum(way.forward.bytes for way in ways) == before
        assert 4 * sum(way.backward.bytes for way in ways) == share * before


def test_two_layers_by_hand():
    assert costs.model_calls(2) == costs.Ways(costs.Calls(5, 5), costs.Calls(10, 5))
