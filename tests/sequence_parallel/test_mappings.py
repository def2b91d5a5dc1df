"""g and ḡ: what arrives where, and their transposes."""

from __future__ import annotations

from functools import partial

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
