"""All-to-all of uneven parts: against torch's own, there and back, and lengths that do not fit."""

from __future__ import annotations

import pytest
import torch

from minitrain.collectives.all_to_all import native, pairwise
from minitrain.comm import Ledger
from minitrain.mixture_of_experts import all_to_all as module
from minitrain.mixture_of_experts.all_to_all import all_to_all


def lengths(world, most):
    """Rows of each rank for each; some have none."""
    return [[(3 * source + 2 * to) % (most + 1) for to in range(world.size)] for source in range(world.size)]


def against_torch(world, most, shape):
    table = lengths(world, most)
    sends, receives = table[world.rank], [row[world.rank] for row in table]
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(sum(sends), *shape, generator=generator, dtype=torch.float64, requires_grad=True)
    with Ledger() as ledger:
        y = all_to_all(x, sends, receives, carrier=pairwise)
    assert ledger.calls("send") == sum(count > 0 for to, count in enumerate(sends) if to != world.rank)
    plain = all_to_all(x.detach(), sends, receives, carrier=native)
    assert torch.equal(y, plain) and y.shape[1:] == shape
    if shape:  # the loss is ⟨y, a⟩, and its gradient is what the inverse makes of a
        towards = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        (y * towards).sum().backward()
        assert torch.equal(x.grad, all_to_all(towards, receives, sends, carrier=native))
    return ledger.calls("all_to_all")


@pytest.mark.parametrize("most", (0, 3))
@pytest.mark.parametrize("shape", ((), (2,), (2, 3)), ids=str)
def test_parts_arrive_and_gradients_return(ranks, most, shape):
    for size in (2, 3):
        assert ranks(size).run(against_torch, most, shape) == [0] * size


def with_gaps(world):
    x = torch.arange(12.0).view(2, 6).t()[: 2 * world.size]  # a transposed matrix: rows are not contiguous
    y = all_to_all(x, [2] * world.size, [2] * world.size, carrier=pairwise)
    assert torch.equal(y, x[2 * world.rank : 2 * world.rank + 2].repeat(world.size, 1))


def test_rows_with_gaps(ranks):
    ranks(2).run(with_gaps)


def bad(world):
    x = torch.ones(3, 2)
    with Ledger() as ledger:
        with pytest.raises(ValueError, match=r"sends=\[1, 1\] sums to 2, but x has 3 rows"):
            all_to_all(x, [1, 1], [1, 1])
        with pytest.raises(ValueError, match=r"receives=\[1\] needs a number of rows for each of 2 ranks"):
            all_to_all(x, [1, 2], [1])
        with pytest.raises(ValueError, match=r"sends=\[4, -1\] needs"):
            all_to_all(x, [4, -1], [1, 1])
    return ledger.entries


def test_bad_lengths_are_refused_before_anything_is_sent(ranks):
    assert ranks(2).run(bad) == [[], []]


def test_backward_is_an_all_to_all_that_can_be_differentiated(ranks):
    ranks(2).run(twice)


def twice(world):
    x = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    y = module.all_to_all(x, [1, 1], [1, 1])
    (gradient,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert torch.equal(second, torch.full_like(second, 6.0))
