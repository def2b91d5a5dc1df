"""Shared by the tests of `ulysses` and `all_gather`: torch's attention of the whole sequence, with an explicit mask."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEAD = 2, 5


def documents(seq):
    """The number of each token's document in two sequences: one long and some of a token or two, and one of all."""
    return torch.tensor([[0] * (seq - 4) + [1, 2, 2, 3], [7] * seq])


def masks(seq):
    """What a query sees, by name; [seq, seq], or [batch, 1, seq, seq]."""
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    of = documents(seq)
    same = torch.stack([row[:, None] == row for row in of])[:, None]
    return {"causal": causal, "all": torch.ones_like(causal), "documents": causal & same, "whole documents": same}


def compare(form, heads, key_heads, mask, group=None, order=None):
    """The largest difference of output and gradients from torch's, where this rank has its part of `order`."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    seq = mask.shape[-1]
    mine = (torch.arange(seq) if order is None else order).chunk(ranks)[rank]
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, count, seq, HEAD) for count in (heads, key_heads, key_heads, heads)]
    *whole, towards = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    own = [each[:, :, mine].clone().requires_grad_() for each in whole]
    for each in whole:
        each.requires_grad_()

    expected = scaled_dot_product_attention(*whole, attn_mask=mask, enable_gqa=True)
    expected.backward(towards)
    found = form(*own)
    found.backward(towards[:, :, mine])
    pairs = [(found, expected), *((mine_.grad, its.grad) for mine_, its in zip(own, whole, strict=True))]
    assert all(its.shape == both[:, :, mine].shape for its, both in pairs)
    return max((its - both[:, :, mine]).abs().max().item() for its, both in pairs)
