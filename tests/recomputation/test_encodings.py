"""Encoded activations: views, numbers of few bits, and their roundings; the lessons have the gradients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from minitrain.recomputation.delayed_precision import from_bits, to_bits
from minitrain.recomputation.sparse_rows import Rows, SparseRows


@pytest.mark.parametrize("shape", ((0,), (1,), (256,), (3, 257), (2, 5, 31)))
def test_rows_come_back(shape):
    dense = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()
    assert torch.equal(Rows.of(dense).dense(), dense)


def test_too_few_zeros_are_kept_dense_and_told(ranks):
    def call():
        x = torch.rand(4, 300, requires_grad=True)
        return F.relu(x).square().sum(), x

    with (
        SparseRows(),
        pytest.warns(UserWarning, match="an activation has too few zeros for sparse rows: it is kept as it is"),
    ):
        loss, x = call()
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach())


def rewritten(x, weight):
    h = F.relu(x - 1).detach()
    weight * h  # has no backward, or torch would refuse what comes next
    return weight * h.mul_(2)


VIEWS = {
    "transposed": lambda x, weight: F.relu(x - 1 + 0 * weight).t() @ weight,
    "its first rows, and all": lambda x, weight: F.relu(x - 1)[:8] @ weight + (F.relu(x - 1) @ weight)[:8],
    "a part of one": lambda x, weight: (lambda h: h @ weight + (h[:, :8] @ weight[:8]))(F.relu(weight - 1)),
    "flattened": lambda x, weight: F.relu(x * weight - 1).flatten() * weight.flatten(),
    "written into": rewritten,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_one_memory_are_encoded_each_as_it_is(name):
    x, found = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)), []
    for how in (nullcontext, SparseRows):
        weight = torch.nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))
        with how():
            y = VIEWS[name](x, weight)
        y.square().sum().backward()
        found.append(weight.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize(("bits", "dtype"), ((16, torch.float16), (8, torch.float8_e4m3fn)))
def test_16_and_8_bits_are_torchs(bits: int, dtype: torch.dtype):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(from_bits(to_bits(x, bits), bits), x.to(dtype).float())


def test_10_bits_take_the_nearest_of_all_their_numbers():
    """Sign, 5 bits of exponent with a bias of 15, 4 of fraction: every number, worked out here."""
    numbers = [
        (-1.0) ** sign * 2.0 ** (e - 15) * (1 + f / 16) for sign in (0, 1) for e in range(1, 31) for f in range(16)
    ]
    all_of_them = torch.tensor(numbers, dtype=torch.float64)
    assert torch.equal(from_bits(to_bits(all_of_them.float(), 10), 10).double(), all_of_them)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, generator=generator) * 2 ** (20 * torch.rand(2000, generator=generator) - 8)
    x = x[x.abs() >= 2**-14]  # the smallest number with all bits of its fraction
    nearest = (x.double()[:, None] - all_of_them).abs().min(1).values
    found = (x.double() - from_bits(to_bits(x, 10), 10).double()).abs()
    assert torch.equal(found, nearest)


def test_10_bits_take_the_even_one_of_two_that_are_as_near():
    between = torch.tensor([2.0**e * (1 + (f + 0.5) / 16) for e in (-14, 0, 15) for f in range(15)])
    even = [2.0**e * (1 + (f + f % 2) / 16) for e in (-14, 0, 15) for f in range(15)]
    assert from_bits(to_bits(between, 10), 10).tolist() == even
    assert torch.equal(from_bits(to_bits(-between, 10), 10), -from_bits(to_bits(between, 10), 10))


def test_numbers_too_large_become_the_largest():
    x = torch.tensor([1e30, -1e30])
    for bits, largest in ((16, 65504.0), (10, 63488.0), (8, 448.0)):
        assert from_bits(to_bits(x, bits), bits).tolist() == [largest, -largest]
