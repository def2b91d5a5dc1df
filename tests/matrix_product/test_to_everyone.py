"""total: equal to torch's own all-reduce, the same bits on every rank, within a group, too."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Ledger
from minitrain.costs.matrix_product import to_everyone_bytes
from minitrain.matrix_product.to_everyone import total

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.complex64)


def sums(world, elements, dtype):
    """Our sum, torch's, and the bytes sent."""
    mine = (torch.arange(elements) * (world.rank + 1) % 7).to(dtype)
    kept = mine.clone()
    with Ledger() as ledger:
        ours = total(mine)
    theirs = mine.clone()
    dist.all_reduce(theirs)
    return torch.equal(ours, theirs), torch.equal(mine, kept), ledger.sent


@pytest.mark.parametrize("size", (1, 2, 3))
def test_total_equals_all_reduce(ranks, size):
    for dtype in DTYPES:
        for elements in (0, 1, 3, 1001):
            for equal, kept, sent in ranks(size).run(sums, elements, dtype):
                assert equal and kept
                assert sent == to_everyone_bytes(elements, size, dtype.itemsize)


def rounded_sum(world):
    torch.manual_seed(world.rank)
    return total(torch.randn(1000))


def test_total_gives_every_rank_the_same_bits(ranks):
    first, *others = ranks(6).run(rounded_sum)
    assert all(torch.equal(first, other) for other in others)


def within_a_group(world):
    members = [0, 2, 3]
    group = dist.new_group(members)
    if world.rank not in members:
        return None
    return total(torch.tensor([10.0**world.rank]), group).item()


def test_total_within_a_group(ranks):
    assert ranks(4).run(within_a_group) == [1101.0, None, 1101.0, 1101.0]
