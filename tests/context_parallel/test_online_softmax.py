"""Softmax in blocks against torch's attention: any blocks, huge scores, derivatives."""

from __future__ import annotations

import pytest
import torch

from minitrain.context_parallel.online_softmax import attention
from tests.context_parallel.common import inputs, one_device, run


@pytest.mark.parametrize("block", (1, 3, 4, 13, 20))
@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("size", (1.0, 1e4))
def test_blocks_on_one_device(block, causal, size):
    q, k, v, g = inputs(13, size)
    found = run(lambda *qkv: attention(*qkv, block=block, causal=causal), q, k, v, g)
    for ours, theirs in zip(found, one_device(q, k, v, g, causal), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12 * size, atol=1e-12 * size)


def test_sixteen_bits_are_refused():
    q = torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="more digits"):
        attention(q, q, q, 1)


def test_the_derivatives():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, block=2), (q, k, v))
