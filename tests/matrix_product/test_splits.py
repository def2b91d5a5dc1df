"""by_data, by_columns, by_rows: sizes that no number of ranks divides, and groups of ranks; lessons have the rest."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.distributed as dist

from minitrain.lessons.matrix_product.compare import whole_numbers

# Rows, inner, columns: some that no number of ranks divides, and some with fewer elements than ranks.
SHAPES = ((7, 3, 5), (1, 2, 3), (1, 1, 1), (2, 11, 1))


def wrong(world, name, members):
    """The shapes of which a tensor is not this rank's part of one device's."""
    group = dist.new_group(members)
    if world.rank not in members:
        return []
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    split, found = import_module(f"minitrain.matrix_product.{name}"), []
    for shape in SHAPES:
        x, w, grad_y = whole_numbers(*shape)
        my_x, my_w, my_grad_y = split.hold(x, w, grad_y, rank, ranks)
        ours = (*split.backward(my_grad_y, my_x, my_w, group), split.forward(my_x, my_w, group))
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = x @ w
        y.backward(grad_y)
        if not all(map(torch.equal, ours, split.hold(x.grad, w.grad, y.detach(), rank, ranks))):
            found.append(shape)
    return found


@pytest.mark.parametrize("members", ([0, 1, 2], [1, 3]), ids=str)
@pytest.mark.parametrize("name", ("by_data", "by_columns", "by_rows"))
def test_equals_one_device_bit_by_bit(ranks, name, members):
    assert ranks(4).run(wrong, name, members) == [[]] * 4
