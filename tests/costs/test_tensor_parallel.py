"""The costs of tensor parallelism against the model, and against each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import tensor_parallel as costs
from minitrain.costs.memory import gpt_layer_parameters

SMALL = st.integers(1, 6)


@given(SMALL, SMALL, SMALL)
def test_one_rank_holds_a_whole_layer_and_sends_nothing(heads, head_size, seq):
    hidden = heads * head_size
    assert costs.layer_parameters(hidden, heads, 1) == gpt_layer_parameters(hidden)
    assert costs.layer_traffic(2, seq, hidden, 1, 0) == (0, 0)
    assert costs.row_first_mlp_traffic(2, seq, hidden, 1, 0) == (0, 0)
    tokens = 2 * seq
    assert costs.layer_flops(2, seq, hidden, heads).forward == 24 * tokens * hidden**2 + 4 * tokens * seq * hidden


@given(SMALL, SMALL, SMALL, st.integers(1, 8))
def test_what_all_ranks_hold_and_do_together(per_rank, head_size, seq, ranks):
    heads, hidden = per_rank * ranks, per_rank * ranks * head_size
    replicated = 6 * hidden  # two norms and two biases
    assert ranks * costs.layer_parameters(hidden, heads, ranks) == (
        costs.layer_parameters(hidden, heads, 1) + (ranks - 1) * replicated
    )
    one, all_ranks = (costs.layer_flops(1, seq, hidden, heads, count) for count in (1, ranks))
    assert [ranks * number for number in all_ranks] == list(one)


@given(SMALL, SMALL, SMALL, st.integers(1, 8))
def test_what_all_ranks_send_together(batch, seq, hidden, ranks):
    size = 4 * batch * seq * hidden
    sent = sum(costs.layer_traffic(batch, seq, hidden, ranks, rank).bytes for rank in range(ranks))
    assert sent == 2 * 2 * (ranks - 1) * size
    sent = sum(costs.row_first_mlp_traffic(batch, seq, hidden, ranks, rank).bytes for rank in range(ranks))
    assert sent == (2 * 4 + 1) * (ranks - 1) * size


def test_by_hand():
    # h = 8, 4 query heads of 2, 2 key and value heads on 4 ranks.
    # Each rank's heads: one of query with its output, and one of key and value that another rank has too.
    attention = 2 * (8 * 2 + 2) + (8 * 2 + 2) + (2 * 8 + 8)
    mlp = (8 * 8 + 8) + (8 * 8 + 8)
    assert costs.layer_parameters(8, 4, 4, kv_heads=2) == attention + mlp + 4 * 8
    assert costs.all_reduces(3) == (6, 6)
    assert costs.payload(2, 3, 8) == 2 * 3 * 8 * 4
