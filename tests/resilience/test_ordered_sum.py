"""Sums in the order of micro-batches."""

from __future__ import annotations

import pytest
import torch

from minitrain.resilience.ordered_sum import ordered_norm, ordered_sum, share


def gradient(micro_batch, elements, dtype):
    generator = torch.Generator().manual_seed(micro_batch)
    # Of very different sizes, so that each order gives other bits.
    return torch.randn(elements, generator=generator).mul(10.0 ** (micro_batch % 5)).to(dtype)


def sums(world, micro_batches, elements, pieces, dtype):
    mine = share(micro_batches, world.rank, world.size)
    before = [gradient(each, elements, dtype) for each in mine]
    found = ordered_sum(before, pieces=pieces)
    # What was given is as it was.
    assert all(torch.equal(a, gradient(each, elements, dtype)) for a, each in zip(before, mine, strict=True))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("micro_batches", "elements", "pieces", "dtype"),
    [(12, 10, 4, torch.float32), (7, 33, 5, torch.float32), (4, 3, 8, torch.float64), (9, 1, 1, torch.bfloat16)],
)
def test_the_same_bits_on_any_number_of_ranks(ranks, size, micro_batches, elements, pieces, dtype):
    right = torch.zeros(elements, dtype=dtype)
    for each in range(micro_batches):
        right = right + gradient(each, elements, dtype)
    for found in ranks(size).run(sums, micro_batches, elements, pieces, dtype):
        assert torch.equal(found, right)


def test_the_norm_of_float32_is_added_in_float64():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 1e19  # squares of 1e38 and their sum
    assert ordered_norm(x) == pytest.approx(float(x.double().norm()), rel=1e-12)


def test_the_norm_has_the_same_bits_with_any_number_of_threads():
    before, found = torch.get_num_threads(), set()
    # Several, as two orders may round to the same number.
    some = torch.randn(9, 100_000, generator=torch.Generator().manual_seed(1))
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.add(tuple(map(ordered_norm, some)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
