"""The small form in a group, and what is computed while tokens travel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minitrain.comm.comm import Comm
from minitrain.comm.mesh import axes
from minitrain.sequence_parallel import ColumnFromSequence, RowToSequence, linear
from minitrain.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from tests.tensor_parallel.under_way import UnderWay

SHARD, WIDTH = 3, 4


class Pair(nn.Module):
    """A product by columns, GELU, a product by rows."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


def reference(ranks, bias=True):
    torch.manual_seed(0)
    inner = 2 * WIDTH * ranks
    return Pair(nn.Linear(WIDTH, inner, bias).double(), nn.Linear(inner, WIDTH, bias).double())


def between_shards(pair, keep_gathered, comm=None):
    first = ColumnFromSequence.of(ColumnParallelLinear.from_linear(pair.first, comm), keep_gathered)
    return Pair(first, RowToSequence.of(RowParallelLinear.from_linear(pair.second, comm)))


def tokens(ranks):
    return torch.randn(2, SHARD * ranks, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def own(world, whole):
    return whole.tensor_split(world.size, 1)[world.rank].contiguous()


def small_in_a_group(world):
    """The small form's outputs and gradients, where the group has some of the ranks."""
    group = axes(dp=2, tp=2)["tp"].get_group()
    alone, rank = reference(2), group.rank()
    torch.manual_seed(0)  # each rank draws one device's weights, and keeps its part
    inner = 2 * WIDTH * 2
    column, row = linear.ColumnFromSequence(WIDTH, inner, group=group), linear.RowToSequence(inner, WIDTH, group=group)
    pair, whole = Pair(column, row).double(), tokens(2).requires_grad_()
    mine = whole.detach().chunk(2, 1)[rank].requires_grad_()
    y, expected = pair(mine), alone(whole)
    y.square().sum().backward(), expected.square().sum().backward()
    torch.testing.assert_close(y, expected.chunk(2, 1)[rank], rtol=0, atol=1e-12)
    torch.testing.assert_close(mine.grad, whole.grad.chunk(2, 1)[rank], rtol=0, atol=1e-12)
    for parameter, its, dim in zip(pair.parameters(), alone.parameters(), (0, 0, 1, None), strict=True):
        expected = its.grad if dim is None else its.grad.chunk(2, dim)[rank]
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_the_small_form_in_a_group(ranks):
    ranks(4).run(small_in_a_group)


def under_way(world, keep_gathered):
    """The products made while tokens are gathered again, and while dX travels."""
    watch = UnderWay()
    pair = between_shards(reference(world.size), keep_gathered, Comm(collectives=watch))
    y = pair(own(world, tokens(world.size)).requires_grad_())
    watch.products = dict.fromkeys(watch.products, 0)
    with watch:
        y.sum().backward()
    return watch.products["all_gather"], watch.products["reduce_scatter"]


def test_products_are_made_while_tokens_are_under_way(ranks):
    assert ranks(2).run(under_way, True) == [(0, 1)] * 2
    assert ranks(2).run(under_way, False) == [(1, 1)] * 2
