"""The four operators differentiated twice, in inference, and with bad input; the lesson has their numbers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.tensor_parallel import mappings as small
from minitrain.tensor_parallel.full.mappings import f, g, split_to_parallel


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


def inference_sends_what_forward_needs(world):
    x = torch.ones(2, world.size)
    with Ledger() as ledger, torch.no_grad():
        f(x), split_to_parallel(x)
    assert not ledger.entries
    assert torch.equal(g(x), x * world.size)


def bad_input_is_named_on_every_rank(world):
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


@pytest.mark.parametrize("case", (inference_sends_what_forward_needs, bad_input_is_named_on_every_rank))
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
