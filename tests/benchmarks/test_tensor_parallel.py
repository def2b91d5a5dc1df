"""The comparison with DTensor runs, says what was compared, and times the same work on both sides."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.benchmarks import tensor_parallel
from minitrain.comm import Ledger
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block

TINY = GPTConfig(positions=4, layers=1, hidden=8, heads=4)


def measure(world):
    return tensor_parallel.measure(world, TINY, batch=1, repeats=1)


def test_every_row_says_what_and_against_what(ranks):
    rows, others = ranks(2).run(measure)
    assert [row.what.rsplit(", ", 1)[1] for row in rows] == ["CPU time", "wall clock"] * len(tensor_parallel.WAYS)
    assert all(row.against == "DTensor (gloo)" and row.ours > 0 and row.theirs > 0 for row in rows)
    assert [row.target for row in rows[::2]] == [way.target for way in tensor_parallel.WAYS]
    assert rows == others


def same_work(world, number):
    """Outputs, the input's gradient, and the bytes that go into collectives."""
    way = tensor_parallel.WAYS[number]
    found = []
    for wrap in (way.ours, way.theirs):
        torch.manual_seed(0)
        module = wrap(world, nn.Sequential(Block(TINY)).double())
        x = torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with Ledger() as ledger:
            y = module(x)
            y.square().sum().backward()
        sums = ledger.calls("all_reduce"), ledger.payload("all_reduce")
        found.append((y.detach(), x.grad, sums))
    (y, grad_x, sums), (their_y, their_grad_x, their_sums) = found
    torch.testing.assert_close(y, their_y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad_x, their_grad_x, rtol=1e-12, atol=1e-12)
    return sums, their_sums


def test_both_sides_compute_and_send_the_same(ranks):
    for ours, theirs in ranks(2).run(same_work, 0):
        assert ours == theirs == (4, 4 * 2 * 4 * 8 * 8)  # four all-reduces of batch · seq · hidden float64
    for ours, theirs in ranks(2).run(same_work, 1):
        assert ours == theirs == (0, 0)  # on sequence shards there are none
