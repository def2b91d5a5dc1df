"""The costs of a split product: parts add up to the whole, for any sizes and any number of ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as some

from minitrain.costs import matrix_product as costs

sizes = some.integers(1, 40)
numbers_of_ranks = some.integers(1, 12)


@given(sizes, numbers_of_ranks)
def test_shares_are_those_of_tensor_split(size, ranks):
    parts = torch.arange(size).tensor_split(ranks)
    assert [costs.share(size, ranks, rank) for rank in range(ranks)] == [len(part) for part in parts]


@given(sizes, sizes, sizes, numbers_of_ranks, some.sampled_from((1, 2, 4, 8)))
def test_what_is_split_is_held_once_and_the_rest_by_everyone(rows, inner, columns, ranks, item):
    x, w = rows * inner * item, inner * columns * item
    held = {
        name: sum(getattr(costs, name)(rows, inner, columns, ranks, rank, item).held for rank in range(ranks))
        for name in ("by_data", "by_columns", "by_rows")
    }
    assert held == {"by_data": x + ranks * w, "by_columns": ranks * x + w, "by_rows": x + w}


@given(sizes, sizes, sizes, numbers_of_ranks)
def test_each_split_has_one_sum(rows, inner, columns, ranks):
    for split in (costs.by_data, costs.by_columns, costs.by_rows):
        cost = split(rows, inner, columns, ranks, rank=0)
        assert (cost.forward == 0) + (cost.backward == 0) >= 1
        assert cost.messages == ranks - 1
        assert (cost.forward + cost.backward == 0) == (ranks == 1)
