"""The costs of tensor parallelism with grouped heads, by hand."""

from __future__ import annotations

from minitrain.costs import tensor_parallel as costs


def test_by_hand():
    # h = 8, 4 query heads of 2, 2 key and value heads on 4 ranks.
    # Each rank's heads: one of query with its output, and one of key and value that another rank has too.
    attention = 2 * (8 * 2 + 2) + (8 * 2 + 2) + (2 * 8 + 8)
    mlp = (8 * 8 + 8) + (8 * 8 + 8)
    assert costs.layer_parameters(8, 4, 4, kv_heads=2) == attention + mlp + 4 * 8
    assert costs.all_reduces(3) == (6, 6)
    assert costs.payload(2, 3, 8) == 2 * 3 * 8 * 4
