"""The costs of sequence parallelism against those of tensor parallelism, and against the paper's table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import activations, tensor_parallel
from minitrain.costs import sequence_parallel as costs

SMALL = st.integers(1, 6)


@given(SMALL, SMALL, SMALL, st.integers(1, 8))
def test_all_ranks_together_send_what_tensor_parallelism_sends_or_a_quarter_more(batch, shard, width, ranks):
    sizes = batch, shard * ranks, width * ranks
    before = sum(tensor_parallel.layer_traffic(*sizes, ranks, rank).bytes for rank in range(ranks))  # each way
    for keep_gathered, share in ((True, 4), (False, 6)):
        ways = [costs.layer_traffic(*sizes, ranks, rank, keep_gathered) for rank in range(ranks)]
        assert sum(way.forward.bytes for way in ways) == before
        assert 4 * sum(way.backward.bytes for way in ways) == share * before


@given(SMALL, SMALL, SMALL, SMALL, st.integers(1, 8))
def test_what_torch_keeps_is_the_papers_terms_and_named_deviations(batch, shard, heads, head, ranks):
    sizes = batch, shard * ranks, heads * head * ranks, heads * ranks, ranks, True
    for keep_gathered in (False, True):
        kept = costs.kept_terms(*sizes, keep_gathered, 2)
        paper = activations.layer(*sizes)
        more = sum(costs.deviations(*sizes[:2], *sizes[4:], 2).values())
        gathered = activations.gathered_inputs(*sizes[:3], ranks) if keep_gathered else 0
        assert abs(sum(kept.values()) - (paper + more + gathered)) < 1e-6 * paper
