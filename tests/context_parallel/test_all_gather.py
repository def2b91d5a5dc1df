"""Gathered keys and values against torch's attention of the whole sequence, in any order of tokens."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Ledger
from minitrain.comm.mesh import axes
from minitrain.context_parallel import all_gather
from tests.context_parallel.exchange import compare, documents, masks

HOW = {"causal": {}, "all": {"causal": False}, "documents": {}, "whole documents": {"causal": False}}


def against_torch(world, heads, key_heads, name, shuffled, group=None):
    """The distance of output and gradients from torch's with an explicit mask."""
    seq = 6 * dist.get_world_size(group)
    order = torch.randperm(seq, generator=torch.Generator().manual_seed(1)) if shuffled else torch.arange(seq)
    of = {"documents": documents(seq)[:, order]} if "documents" in name else {}
    form = partial(all_gather.attention, positions=order if shuffled else None, group=group, **of, **HOW[name])
    return compare(form, heads, key_heads, masks(seq)[name], group, order)


@pytest.mark.parametrize("shuffled", (False, True), ids=("in order", "shuffled"))
@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("size, heads, key_heads", ((1, 3, 1), (2, 3, 3), (3, 4, 2), (4, 3, 1)))
def test_it_is_attention_of_the_whole_sequence(ranks, size, heads, key_heads, name, shuffled):
    assert max(ranks(size).run(against_torch, heads, key_heads, name, shuffled)) < 1e-12


def in_group(world):
    return against_torch(world, 4, 2, "documents", True, axes(dp=2, cp=2)["cp"].get_group())


def test_ranks_are_those_of_the_group(ranks):
    assert max(ranks(4).run(in_group)) < 1e-12


def refused(world):
    q = torch.ones(1, 2, 3, 4)
    with Ledger() as ledger, pytest.raises(AssertionError, match="documents of all 6 tokens, not only of this rank's"):
        all_gather.attention(q, q, q, documents=torch.zeros(1, 3))
    return ledger.entries


def test_documents_of_one_rank_are_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(refused) == [[], []]
