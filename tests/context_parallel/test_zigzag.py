"""Zigzag ring attention against torch's attention on one device, and which chunks see which."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.context_parallel.zigzag import held, visible, zigzag_attention
from tests.context_parallel.common import inputs, near, one_device, run


def zigzag(world, seq):
    whole = inputs(seq)
    at = torch.cat(held(seq, world.size)[world.rank])
    found = run(lambda *qkv: zigzag_attention(*qkv, seq=seq), *(x[:, :, at] for x in whole))
    near(found, [x[:, :, at] for x in one_device(*whole, True)])


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_zigzag_is_one_device(ranks, size):
    for seq in (2 * size, 24, 25, 31):
        ranks(size).run(zigzag, seq)


def test_visible_is_what_the_positions_say():
    for ranks in (1, 2, 3, 5):
        at = held(4 * ranks + 1, ranks)
        for rank in range(ranks):
            for owner in range(ranks):
                pairs = {(q, k) for q in (0, 1) for k in (0, 1) if at[owner][k][0] <= at[rank][q][-1]}
                assert set(visible(rank, owner)) == pairs and len(visible(rank, owner)) == len(pairs)


def refused(world):
    x = torch.zeros(1, 1, 2, 2)
    with Ledger() as ledger:
        with pytest.raises(AssertionError, match="5 tokens are too few for two chunks on each of 3 ranks"):
            zigzag_attention(x, x, x, 5)
        with pytest.raises(AssertionError, match="must hold 4 of 12 tokens"):
            zigzag_attention(x, x, x, 12)
    assert not ledger.entries


def test_bad_input_is_refused_on_all_ranks_before_anything_is_sent(ranks):
    ranks(3).run(refused)
