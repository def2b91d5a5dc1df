"""Ulysses and gathered keys and values against torch's attention of the whole sequence, with an explicit mask."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm.mesh import axes
from minitrain.context_parallel import all_gather, ulysses

BATCH, HEAD = 2, 5
HOW = {"causal": {}, "all": {"causal": False}, "documents": {}, "whole documents": {"causal": False}}


def documents(seq):
    """The number of each token's document in two sequences: one long and some of a token or two, and one of all."""
    return torch.tensor([[0] * (seq - 4) + [1, 2, 2, 3], [7] * seq])


def masks(seq):
    """What a query sees, by name; [seq, seq], or [batch, 1, seq, seq]."""
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    same = torch.stack([row[:, None] == row for row in documents(seq)])[:, None]
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


def gathered(world, heads, key_heads, name, shuffled=True, group=None):
    seq = 6 * dist.get_world_size(group)
    order = torch.randperm(seq, generator=torch.Generator().manual_seed(1)) if shuffled else torch.arange(seq)
    of = {"documents": documents(seq)[:, order]} if "documents" in name else {}
    form = partial(all_gather.attention, positions=order if shuffled else None, group=group, **of, **HOW[name])
    return compare(form, heads, key_heads, masks(seq)[name], group, order)


@pytest.mark.parametrize("shuffled", (False, True), ids=("in order", "shuffled"))
@pytest.mark.parametrize("name", HOW)
def test_gathered_keys_and_values(ranks, name, shuffled):
    assert max(ranks(3).run(gathered, 4, 2, name, shuffled)) < 1e-12


def exchanged(world, heads, key_heads, name, group=None):
    mask = masks(6 * dist.get_world_size(group))[name]
    core = partial(scaled_dot_product_attention, attn_mask=mask, enable_gqa=True)
    return compare(partial(ulysses.attention, core=core, group=group), heads, key_heads, mask, group)


@pytest.mark.parametrize("name", ("causal", "documents"))
@pytest.mark.parametrize("size, heads, key_heads", ((2, 6, 1), (3, 12, 4), (4, 8, 2)))
def test_exchanged_heads(ranks, size, heads, key_heads, name):
    """With as many key heads as ranks, fewer, and a number that ranks don't divide."""
    assert max(ranks(size).run(exchanged, heads, key_heads, name)) < 1e-12


def in_group(world):
    group = axes(dp=2, cp=2)["cp"].get_group()
    return max(gathered(world, 4, 2, "documents", True, group), exchanged(world, 4, 2, "causal", group))


def test_ranks_are_those_of_the_group(ranks):
    assert max(ranks(4).run(in_group)) < 1e-12
