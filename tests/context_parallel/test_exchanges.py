"""Ulysses and gathered keys and values in groups of ranks, against torch's attention with an explicit mask."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm.mesh import axes
from minitrain.context_parallel import all_gather, ulysses

BATCH, HEAD = 2, 5


def documents(seq):
    """The number of each token's document in two sequences: one long and some of a token or two, and one of all."""
    return torch.tensor([[0] * (seq - 4) + [1, 2, 2, 3], [7] * seq])


def compare(form, heads, key_heads, mask, group, order=None):
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


def in_pairs(world):
    """In groups of two ranks: gathered keys in any order and documents; exchanged heads, with repeated key heads."""
    group, seq = axes(dp=2, cp=2)["cp"].get_group(), 12
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    order, of = torch.randperm(seq, generator=torch.Generator().manual_seed(1)), documents(seq)
    same = torch.stack([row[:, None] == row for row in of])[:, None]
    gathered = partial(all_gather.attention, positions=order, documents=of[:, order], group=group)
    core = partial(scaled_dot_product_attention, attn_mask=causal, enable_gqa=True)
    exchanged = partial(ulysses.attention, core=core, group=group)
    return max(compare(gathered, 4, 2, causal & same, group, order), compare(exchanged, 6, 1, causal, group))


def test_ranks_are_those_of_the_group(ranks):
    assert max(ranks(4).run(in_pairs)) < 1e-12
