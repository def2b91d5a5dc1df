"""Adam: against torch's for any means and shapes, on leaves of a model, and on flat shards."""

from __future__ import annotations

from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.adam import Adam
from tests.optimizers.common import pair


@settings(max_examples=30)
@given(
    st.floats(0, 0.99),
    st.floats(0, 0.9999),
    st.sampled_from([1e-8, 1e-2]),
    st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=3),
)
def test_like_torch(beta_1, beta_2, eps, shapes):
    make = partial(Adam, lr=0.1, betas=(beta_1, beta_2), eps=eps)
    theirs = partial(torch.optim.Adam, lr=0.1, betas=(beta_1, beta_2), eps=eps)
    for ours, right in pair(make, theirs, shapes):
        torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-9)
