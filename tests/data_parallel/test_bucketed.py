"""Packing: every parameter once, from the last to the first, in buckets that costs predicts by another way."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.full.bucketed import pack

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def some_parameters(shapes):
    return {f"p{i}": nn.Parameter(torch.zeros(size, dtype=DTYPES[kind])) for i, (size, kind) in enumerate(shapes)}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=12), st.integers(1, 300))
@example([(2, 0), (2, 0)], 8)  # exactly full
def test_packing_is_what_costs_predicts(shapes, limit):
    parameters = some_parameters(shapes)
    buckets = pack(parameters, limit / 2**20)
    sizes = [costs.Sizes(p.numel(), p.element_size(), p.dtype) for p in parameters.values()]
    predicted = costs.buckets(sizes, limit)
    assert [(b.flat.numel(), b.flat.element_size(), b.flat.dtype) for b in buckets] == predicted
    assert sum(bucket.flat.nbytes for bucket in buckets) == costs.payload(sizes)
    for dtype in DTYPES:
        mine = [bucket.parameters for bucket in buckets if bucket.flat.dtype == dtype]
        names = [name for bucket in mine for name in bucket]
        assert names == [name for name in reversed(parameters) if parameters[name].dtype == dtype]
        filled = [[p.nbytes for p in bucket.values()] for bucket in mine]
        assert all(sum(size[:-1]) < limit for size in filled), "it was not full before its last parameter"
        assert all(sum(size) >= limit for size in filled[:-1])
