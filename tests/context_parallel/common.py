"""Inputs, and the results of torch's attention on one device."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def inputs(seq, queries=1.0):
    generator = torch.Generator().manual_seed(seq)
    q, k, v, g = torch.randn(4, 2, 3, seq, 5, generator=generator, dtype=torch.float64)
    return queries * q, k, v, g


def one_device(q, k, v, g, causal):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    output = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    output.backward(g)
    return [output.detach(), *(x.grad for x in leaves)]


def run(attend, q, k, v, g):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    output = attend(*leaves)
    output.backward(g)
    return [output.detach(), *(x.grad for x in leaves)]


def near(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
