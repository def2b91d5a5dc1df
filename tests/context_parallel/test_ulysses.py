"""Ulysses against torch's attention of the whole sequence, and what it refuses."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm import Ledger
from minitrain.comm.mesh import axes
from minitrain.context_parallel import ulysses
from tests.context_parallel.exchange import compare, masks


def against_torch(world, heads, key_heads, name, group=None):
    """The distance of output and gradients from torch's with an explicit mask."""
    ranks = dist.get_world_size(group)
    mask = masks(6 * ranks)[name]
    core = partial(scaled_dot_product_attention, attn_mask=mask, enable_gqa=True)
    return compare(partial(ulysses.attention, core=core, group=group), heads, key_heads, mask, group)


@pytest.mark.parametrize("name", ("causal", "all", "documents"))
@pytest.mark.parametrize(
    "size, heads, key_heads", ((1, 3, 1), (2, 4, 4), (2, 6, 1), (3, 12, 4), (3, 6, 3), (4, 8, 2), (4, 12, 3))
)
def test_it_is_attention_of_the_whole_sequence(ranks, size, heads, key_heads, name):
    assert max(ranks(size).run(against_torch, heads, key_heads, name)) < 1e-12


def in_group(world):
    return against_torch(world, 4, 2, "causal", axes(dp=2, cp=2)["cp"].get_group())


def test_ranks_are_those_of_the_group(ranks):
    assert max(ranks(4).run(in_group)) < 1e-12


def the_default(world):
    return compare(ulysses.attention, 2 * world.size, world.size, masks(6 * world.size)["causal"])


def test_the_default_is_causal(ranks):
    assert max(ranks(3).run(the_default)) < 1e-12


def exchanged(world):
    """Numbers that say of which head and token they are: [1, heads, seq/n, 2]."""
    n, rank = world.size, world.rank
    heads, shard = 2 * n, 3
    head, token = torch.meshgrid(torch.arange(heads), torch.arange(rank * shard, (rank + 1) * shard), indexing="ij")
    x = torch.stack([head, token], -1)[None].double()
    y = ulysses.AllToAll.apply(x, ulysses.HEADS, ulysses.SEQ, None)
    assert y[0, :, 0, 0].tolist() == [2 * rank, 2 * rank + 1]
    assert y[0, 0, :, 1].tolist() == list(range(n * shard))
    assert torch.equal(ulysses.AllToAll.apply(y, ulysses.SEQ, ulysses.HEADS, None), x)


@pytest.mark.parametrize("size", (1, 3, 4))
def test_heads_and_tokens_keep_their_order_there_and_back(ranks, size):
    ranks(size).run(exchanged)


def refused(world):
    with Ledger() as ledger:
        for heads, message in ((1, "1 heads cannot be divided over 2 ranks; use a number"), (3, "3 heads cannot")):
            q = torch.ones(1, heads, 2, 4)
            with pytest.raises(AssertionError, match=message):
                ulysses.attention(q, q, q)
        k = torch.ones(1, 3, 2, 4)
        with pytest.raises(AssertionError, match="3 key heads do not divide 4 heads"):
            ulysses.attention(torch.ones(1, 4, 2, 4), k, k)
    return ledger.entries


def test_heads_that_do_not_divide_are_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(refused) == [[], []]


def twice(world):
    x = torch.ones(1, 2, 3, 1, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad((ulysses.AllToAll.apply(x, 1, 2, None) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.full_like(x, 6.0))


def test_the_exchange_can_be_differentiated_twice(ranks):
    ranks(2).run(twice)
