"""Muon: torch's bits, singular values, and shapes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.costs import optimizers as costs
from minitrain.optimizers.muon import Muon, newton_schulz
from minitrain.zero.stage1 import Zero1
from tests.optimizers.common import pair

sides = st.integers(1, 12)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@settings(max_examples=25)
@given(sides, sides, st.floats(0, 0.99), st.floats(0, 0.5), st.sampled_from([torch.float32, torch.float64]))
def test_torchs_bits(rows, columns, momentum, decay, dtype):
    options = {"lr": 0.02, "momentum": momentum, "weight_decay": decay}
    shapes = [(rows, columns), (columns, rows)]
    for ours, right in pair(partial(Muon, **options), partial(torch.optim.Muon, **options), shapes, dtype=dtype):
        assert torch.equal(ours, right)


@settings(max_examples=25)
@given(sides, sides, st.integers(0, 1000))
def test_singular_values_by_the_polynomial(rows, columns, seed):
    g = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    after = g.new_tensor([costs.newton_schulz(float(each)) for each in s / s.norm()])
    torch.testing.assert_close(newton_schulz(g, dtype=torch.float64), u @ after.diag() @ v, rtol=1e-8, atol=1e-8)
    # The transposed matrix has the transposed result.
    torch.testing.assert_close(newton_schulz(g.T, dtype=torch.float64).T, newton_schulz(g, dtype=torch.float64))


def on_a_flat_shard(world):
    with pytest.raises(AssertionError, match="Muon steps matrices"):
        Zero1(torch.nn.Linear(4, 4), Muon)
    return True


def test_a_flat_shard_is_no_matrix(ranks):
    assert all(ranks(2).run(on_a_flat_shard))
