"""total and collect: equal to torch's own collectives, the same bits on every rank, and clear errors on all ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Ledger
from minitrain.costs.matrix_product import share, to_everyone_bytes
from minitrain.matrix_product import to_everyone
from minitrain.matrix_product.full.to_everyone import collect, total

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


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_total_equals_all_reduce(ranks, size):
    for dtype in DTYPES:
        for elements in (0, 1, 3, 1001):
            for equal, kept, sent in ranks(size).run(sums, elements, dtype):
                assert equal and kept
                assert sent == to_everyone_bytes(elements, size, dtype.itemsize)


def small_forms(world, shape, dim):
    """Whether the small forms give the bits of the full ones."""
    torch.manual_seed(world.rank)
    mine = torch.randn(shape)
    part = torch.randn(shape).tensor_split(world.size, dim)[world.rank].contiguous()
    whole = to_everyone.collect(part, shape[dim], dim), collect(part, shape[dim], dim)
    return torch.equal(to_everyone.total(mine), total(mine)) and torch.equal(*whole)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_forms_give_the_bits_of_the_full_ones(ranks, size):
    for shape, dim in (((7, 3), 0), ((3, 7), 1), ((2, 3), 0), ((2, 3, 5), -1)):
        assert ranks(size).run(small_forms, shape, dim) == [True] * size


def collected(world, shape, dim):
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    part = whole.tensor_split(world.size, dim)[world.rank].contiguous()
    with Ledger() as ledger:
        result = collect(part, shape[dim], dim)
    return torch.equal(result, whole), ledger.sent


@pytest.mark.parametrize("size", (1, 2, 3))
def test_collect_puts_the_parts_in_order(ranks, size):
    for shape, dim in (((7, 3), 0), ((3, 7), 1), ((2, 3), 0), ((2, 3, 5), -1)):
        for rank, (equal, sent) in enumerate(ranks(size).run(collected, shape, dim)):
            rest = torch.Size(shape).numel() // shape[dim]
            assert equal
            assert sent == to_everyone_bytes(share(shape[dim], size, rank) * rest, size)


def within_a_group(world):
    members = [0, 2, 3]
    group = dist.new_group(members)
    if world.rank not in members:
        return None
    return total(torch.tensor([10.0**world.rank]), group).item()


def test_total_within_a_group(ranks):
    assert ranks(4).run(within_a_group) == [1101.0, None, 1101.0, 1101.0]


def error_of(world, function, *arguments, **options):
    """The error that every rank gets, and that the ranks can talk afterwards."""
    try:
        globals()[function](world, *arguments, **options)
        message = "none"
    except ValueError as error:
        message = str(error)
    return message, total(torch.ones(1)).item()


def other_shapes(world):
    total(torch.zeros(3 + world.rank // 2))


def other_dtypes(world):
    total(torch.zeros(3, dtype=torch.float64 if world.rank == 1 else torch.float32))


def with_gaps(world):
    total(torch.zeros(4, 3)[:, 0] if world.rank == 1 else torch.zeros(4))


def wrong_part(world):
    collect(torch.zeros(2, 5), size=5)


def part_with_gaps(world):
    collect(torch.zeros(4, 6)[:, :2] if world.rank == 2 else torch.zeros(4, 2), size=6, dim=1)


@pytest.mark.parametrize(
    ("function", "words"),
    (
        ("other_shapes", ("shape", "(3,) on rank 0,1", "(4,) on rank 2")),
        ("other_dtypes", ("dtype", "torch.float64 on rank 1")),
        ("with_gaps", ("not contiguous on rank 1", "tensor.contiguous()")),
        ("wrong_part", ("rank 2", "should be 1 long in dim 0", "size=5 over 3 ranks", "tensor_split")),
        ("part_with_gaps", ("rank 2 is not contiguous", "part.contiguous()")),
    ),
)
def test_bad_input_is_refused_on_every_rank(ranks, function, words):
    for message, after in ranks(3).run(error_of, function):
        assert all(word in message for word in words), message
        assert after == 3
