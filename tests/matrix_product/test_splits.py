"""by_data, by_columns, by_rows: each equals one device, forward and backward, and sends what theory says."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Ledger
from minitrain.costs import matrix_product as costs
from minitrain.lessons.matrix_product.compare import whole_numbers

SPLITS = ("by_data", "by_columns", "by_rows")
# rows, inner, columns: the lesson's, some that no number of ranks divides, and some with fewer elements than ranks
SHAPES = ((4, 5, 8), (7, 3, 5), (1, 2, 3), (1, 1, 1), (2, 11, 1))


def on_one_device(x, w, grad_y):
    """Y, ∂X and ∂W by autograd: an oracle that shares no line with ours."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = x @ w
    y.backward(grad_y)
    return y.detach(), x.grad, w.grad


def run_split(world, name, shape, dtype, members=None):
    """One split product on some ranks; what it sent, and whether every tensor is one device's part."""
    group = None if members is None else dist.new_group(members)
    if members is not None and world.rank not in members:
        return None
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    split = import_module(f"minitrain.matrix_product.{name}")
    x, w, grad_y = (tensor.to(dtype) for tensor in whole_numbers(*shape))
    my_x, my_w, my_grad_y = split.hold(x, w, grad_y, rank, ranks)
    before = my_x.clone(), my_w.clone(), my_grad_y.clone()
    with Ledger() as forward:
        y = split.forward(my_x, my_w, group)
    with Ledger() as backward:
        grad_x, grad_w = split.backward(my_grad_y, my_x, my_w, group)
    single_y, single_x, single_w = on_one_device(x, w, grad_y)
    expected_x, expected_w, expected_y = split.hold(single_x, single_w, single_y, rank, ranks)
    equal = [torch.equal(*pair) for pair in ((y, expected_y), (grad_x, expected_x), (grad_w, expected_w))]
    untouched = all(torch.equal(*pair) for pair in zip(before, (my_x, my_w, my_grad_y), strict=True))
    return equal, untouched, (forward.sent, backward.sent, forward.messages + backward.messages)


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("name", SPLITS)
def test_equals_one_device_bit_by_bit(ranks, name, size):
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64):
            cost = [getattr(costs, name)(*shape, size, rank, dtype.itemsize) for rank in range(size)]
            for rank, (equal, untouched, sent) in enumerate(ranks(size).run(run_split, name, shape, dtype)):
                assert equal == [True] * 3, (shape, rank)
                assert untouched, "inputs were changed"
                assert sent == (cost[rank].forward, cost[rank].backward, cost[rank].messages), (shape, rank)


@pytest.mark.parametrize("name", SPLITS)
def test_within_a_group(ranks, name):
    results = ranks(4).run(run_split, name, (4, 5, 8), torch.float32, [1, 3])
    assert results[0] is results[2] is None
    for rank, (equal, _, sent) in ((0, results[1]), (1, results[3])):
        cost = getattr(costs, name)(4, 5, 8, 2, rank)
        assert equal == [True] * 3
        assert sent == (cost.forward, cost.backward, cost.messages)
