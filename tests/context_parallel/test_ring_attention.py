"""Ring attention against torch's attention on one device, and its messages by hand."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.context_parallel.ring_attention import positions, ring_attention
from tests.context_parallel.common import inputs, near, one_device, run


def ring(world, seq, causal):
    whole = inputs(seq)
    at = positions(seq, world.size)[world.rank]
    mine = [x[:, :, at] for x in whole]
    found = run(lambda *qkv: ring_attention(*qkv, seq=seq, causal=causal), *mine)
    near(found, [x[:, :, at] for x in one_device(*whole, causal)])


@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_ring_is_one_device(ranks, size, causal):
    for seq in (size, 12, 13, 15):
        ranks(size).run(ring, seq, causal)


def messages(world):
    """Seven tokens of 2 · 3 · 5 elements, 8 bytes each, on three ranks: 3, 2 and 2 tokens."""
    at = positions(7, 3)[world.rank]
    q, k, v, g = (x[:, :, at] for x in inputs(7))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with Ledger() as forward:
        output = ring_attention(*leaves, seq=7)
    with Ledger() as backward:
        output.backward(g)
    token = 2 * 2 * 3 * 5 * 8  # its key and its value
    # Rank 0 sends its own chunk and rank 2's, rank 1 its own and rank 0's, rank 2 its own and rank 1's.
    own = (3 + 2, 2 + 3, 2 + 2)[world.rank] * token
    assert (forward.sent, forward.messages) == (own, 2)
    assert (backward.sent, backward.messages) == (own + 7 * token, 5)


def test_messages_of_the_ring_by_hand(ranks):
    ranks(3).run(messages)


def refused(world):
    x = torch.zeros(1, 1, 2, 2)
    with Ledger() as ledger:
        with pytest.raises(AssertionError, match="2 tokens are too few for 3 ranks"):
            ring_attention(x, x, x, 2)
        with pytest.raises(AssertionError, match="must hold 3 of 9 tokens"):
            ring_attention(x, x, x, 9)
        with pytest.raises(AssertionError, match="more digits"):
            ring_attention(x.half(), x.half(), x.half(), 6)
    assert not ledger.entries


def test_bad_input_is_refused_on_all_ranks_before_anything_is_sent(ranks):
    ranks(3).run(refused)
