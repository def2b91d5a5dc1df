"""SM3: the covering inequality for tensors of any order, Adagrad on vectors, zeros."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.sm3 import SM3, sm3_i, sm3_ii
from tests.optimizers.common import step

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def zeros(shape):
    return [
        torch.zeros([size if dim == d else 1 for d, size in enumerate(shape)], dtype=torch.float64)
        for dim in range(len(shape))
    ]


@settings(max_examples=50)
@given(shapes, st.integers(1, 5), st.integers(0, 1000))
def test_the_bounds_cover_the_sums(shape, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    one, two, sums, last = zeros(shape), zeros(shape), 0, 0
    for _ in range(steps):
        # Some are exactly 0, as in rows of an embedding.
        g = torch.randn(shape, generator=generator, dtype=torch.float64).relu()
        sums = sums + g * g
        nu_i, nu_ii = sm3_i(one, g), sm3_ii(two, g)
        assert (sums <= nu_ii).all() and (nu_ii <= nu_i).all() and (nu_ii >= last).all()
        last = nu_ii
    if len(shape) == 1:
        assert torch.equal(nu_i, nu_ii) and torch.equal(nu_i, sums)


def test_a_parameter_that_never_had_a_gradient_stays():
    for version in (sm3_i, sm3_ii):
        w = torch.ones(2, 3)
        step(SM3([w], lr=0.1, version=version), torch.zeros(2, 3))
        assert w.eq(1).all()
