"""g and ḡ: what arrives where, their transposes, and what does not divide."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import attrgetter

import pytest
import torch
import torch.distributed as dist

from minitrain.collectives.full import native, ring
from minitrain.comm.comm import Comm
from minitrain.comm.mesh import axes
from minitrain.sequence_parallel import mappings
from minitrain.sequence_parallel.full import mappings as full

SHAPES = ((2, 3, 4), (1, 1), (3, 2, 2, 5))  # [batch, tokens of a rank, …]


def brought(shape, ranks, seed):
    """All ranks' tokens of every sequence, whole numbers: `[batch, tokens of a rank · ranks, …]`."""
    batch, shard, *width = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, (batch, shard * ranks, *width), generator=generator, dtype=torch.float64)


def like_one_device(world, form, pairs=False):
    """Both operators, forward and backward; with `pairs` in groups of two ranks."""
    group = axes(dp=2, tp=2)["tp"].get_group() if pairs else None
    if form == "small":
        g, g_bar = partial(mappings.g, group=group), partial(mappings.g_bar, group=group)
    else:
        comm = Comm(group, {"native": native, "ring": ring}[form])
        g, g_bar = partial(full.g, comm=comm), partial(full.g_bar, comm=comm)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for shape in SHAPES:
        whole = brought(shape, ranks, 0)
        mine = whole.tensor_split(ranks, 1)[rank].clone().requires_grad_()
        gathered = g(mine)
        gathered.backward(whole * (rank + 1))  # rank r finds the gradient (r + 1) · whole
        assert torch.equal(gathered, whole)
        assert torch.equal(mine.grad, sum(range(1, ranks + 1)) * mine.detach())

        summands = [brought(shape, ranks, seed) for seed in range(ranks)]
        own = summands[rank].clone().requires_grad_()
        scattered = g_bar(own)
        scattered.backward(whole.tensor_split(ranks, 1)[rank].contiguous())
        assert torch.equal(scattered, sum(summands).tensor_split(ranks, 1)[rank])
        assert torch.equal(own.grad, whole) and torch.equal(own.detach(), summands[rank])


@pytest.mark.parametrize("form", ("small", "native", "ring"))
def test_both_operators_are_those_of_the_paper(ranks, form):
    ranks(3).run(like_one_device, form)
    ranks(4).run(like_one_device, form, True)


def refused(world):
    with pytest.raises(AssertionError, match="a sequence of 5 tokens cannot be divided over 2 ranks"):
        mappings.g_bar(torch.ones(2, 5, 3))
    with pytest.raises(ValueError, match="seq=5 cannot be split over 2 tensor-parallel ranks; use a multiple of 2"):
        full.g_bar(torch.ones(2, 5, 3))
    dist.barrier()
    with pytest.raises(ValueError, match="differs between ranks"):
        full.g(torch.ones(1, 2 + world.rank), Comm(check=True))


def test_sequences_that_do_not_divide_or_differ_are_refused(ranks):
    ranks(2).run(refused)


def differentiated_twice(world, form):
    g, g_bar = attrgetter("g", "g_bar")(import_module(form))
    x = torch.arange(4.0, dtype=torch.float64).view(1, 4, 1).requires_grad_()
    (first,) = torch.autograd.grad(g(g_bar(x) ** 3).sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()


@pytest.mark.parametrize("form", (mappings, full), ids=("small", "full"))
def test_they_can_be_differentiated_twice(ranks, form):
    # Every rank brings x, so s = n·x is scattered, cubed and gathered by n ranks: the sum of all that they add up is
    # n·s³. Its gradient for one summand is 3n·s²; the n ranks' sum of that has the derivative 6n²·s = 6n³·x.
    n = 2
    expected = [6.0 * n**3 * x for x in range(4)]
    for found in ranks(n).run(differentiated_twice, form.__name__):
        assert found == expected
