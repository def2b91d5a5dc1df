"""Softmax in blocks against torch's attention on one device, and what rings refuse; the lessons have the rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minitrain.comm import Ledger
from minitrain.context_parallel import ring_attention, zigzag
from minitrain.context_parallel.online_softmax import attention


def inputs(seq, queries=1.0):
    generator = torch.Generator().manual_seed(seq)
    q, k, v, g = torch.randn(4, 2, 3, seq, 5, generator=generator, dtype=torch.float64)
    return queries * q, k, v, g


def run(attend, q, k, v, g):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    output = attend(*leaves)
    output.backward(g)
    return [output.detach(), *(x.grad for x in leaves)]


def one_device(*tensors, causal):
    return run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *tensors)


@pytest.mark.parametrize("block", (1, 4, 20))
@pytest.mark.parametrize("causal, size", ((True, 1.0), (False, 1.0), (True, 1e4)))
def test_blocks_on_one_device(block, causal, size):
    whole = inputs(13, size)
    found = run(lambda *qkv: attention(*qkv, block=block, causal=causal), *whole)
    for ours, theirs in zip(found, one_device(*whole, causal=causal), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12 * size, atol=1e-12 * size)


def refused(world):
    x = torch.zeros(1, 1, 2, 2)
    with Ledger() as ledger:
        with pytest.raises(AssertionError, match="must hold 3 of 9 tokens"):
            ring_attention.ring_attention(x, x, x, 9)
        with pytest.raises(AssertionError, match="must hold 4 of 12 tokens"):
            zigzag.zigzag_attention(x, x, x, 12)
    assert not ledger.entries


def test_other_numbers_of_tokens_are_refused_on_all_ranks_before_anything_is_sent(ranks):
    ranks(3).run(refused)
