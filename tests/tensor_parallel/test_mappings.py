"""The four operators against sums and cuts done by hand, against DTensor, and with input that differs between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.tensor_parallel import mappings as small
from minitrain.tensor_parallel.full.mappings import (
    f,
    g,
    gather_from_parallel,
    split_to_parallel,
)

OPERATORS = {"copy": f, "reduce": g, "split": split_to_parallel, "gather": gather_from_parallel}
SMALL = {"copy": small.copy_to_parallel, "reduce": small.reduce_from_parallel}


def drawn(shape, seed, dtype=torch.float64):
    """Whole numbers: sums are exact in every dtype."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cut(tensor, world):
    return tensor.tensor_split(world.size, -1)[world.rank]


def by_hand(world, name, lead, width, dtype):
    """x, the gradient of y, and what y and the gradient of x must be."""
    parts = [drawn((*lead, width), 1 + rank, dtype) for rank in range(world.size)]
    wholes = [drawn((*lead, width * world.size), 1 + rank, dtype) for rank in range(world.size)]
    same, mine = drawn((*lead, width * world.size), 0, dtype), wholes[world.rank]
    return {
        "copy": (same, mine, same, sum(wholes)),
        "reduce": (mine, same, sum(wholes), same),
        "split": (same, parts[world.rank], cut(same, world), torch.cat(parts, -1)),
        "gather": (parts[world.rank], same, torch.cat(parts, -1), cut(same, world)),
    }[name]


def operate(world, name, lead, through_ring, dtype, form=None):
    x, dy, y, dx = by_hand(world, name, lead, 3, dtype)
    before = x.clone(), dy.clone()
    x.requires_grad_()
    image = OPERATORS[name](x, Comm(collectives=ring if through_ring else native)) if form is None else form(x)
    image.backward(dy)
    torch.testing.assert_close(image.detach(), y, rtol=0, atol=0)
    torch.testing.assert_close(x.grad, dx, rtol=0, atol=0)
    assert torch.equal(x.detach(), before[0]) and torch.equal(dy, before[1]), "what was given was changed"


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_and_backward(ranks, name):
    for size, lead, through_ring, dtype in (
        (1, (2,), False, torch.float64),
        (2, (), False, torch.bfloat16),
        (2, (2, 3), True, torch.float32),
        (3, (5,), True, torch.float64),
        (3, (2, 1, 3), False, torch.float16),
    ):
        ranks(size).run(operate, name, lead, through_ring, dtype)
    if name in SMALL:
        ranks(3).run(operate, name, (2, 3), False, torch.float64, SMALL[name])


def twice(world, f):
    """The gradient of a gradient's square: f backward is g, whose backward is f again."""
    x = torch.full((2,), 3.0, dtype=torch.float64, requires_grad=True)
    loss = (f(x) ** 3).sum() * (1 + world.rank)  # the loss of all ranks together is Σ(1 + r) · Σx³
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    total = sum(1 + rank for rank in range(world.size))
    torch.testing.assert_close(first, torch.full_like(x, total * 3 * 9.0))
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, total * 6 * 3.0))


@pytest.mark.parametrize("operator", (f, small.f))
def test_they_can_be_differentiated_again(ranks, operator):
    ranks(2).run(twice, operator)


def without_gradient(world):
    x = torch.ones(2, world.size)
    with Ledger() as ledger, torch.no_grad():
        f(x), split_to_parallel(x)
    assert not ledger.entries
    assert torch.equal(g(x), x * world.size)
    return True


def test_inference_sends_what_forward_needs(ranks):
    assert all(ranks(2).run(without_gradient))


def wrong(world):
    alone = [dist.new_group([rank]) for rank in range(world.size)]
    x = torch.ones(2, 3 * world.size)
    # Where signatures are checked, as here, that check speaks first: torch gives others no group, but a number.
    with pytest.raises(Exception, match=r"group: this rank \(\d\) is not in it|parameter 'comm'"):
        f(x, alone[1 - world.rank])
    with pytest.raises(ValueError, match=r"width=5 cannot be split over 2 tensor-parallel ranks; use a multiple of 2"):
        split_to_parallel(torch.ones(2, 5))
    with pytest.raises(ValueError, match="shape .* differs between ranks"):
        g(torch.ones(2 + world.rank), Comm(check=True))
    x[0, 0] += world.rank
    for operator in (f, split_to_parallel):
        with pytest.raises(
            ValueError, match="`x` must be equal on all tensor-parallel ranks .* on rank 0, .* on rank 1"
        ):
            operator(x, Comm(check=True))
    return True


def test_bad_input_is_named_on_every_rank(ranks):
    assert all(ranks(2).run(wrong))
