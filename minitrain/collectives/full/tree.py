"""The full form of `minitrain.collectives.tree` adds any root, reduce_scatter and all_gather, and checks.

**Idea.** Any number of ranks works: a partner that is missing is left out. Reduce-scatter and all-gather, which leave a
different chunk on each rank, are those of `minitrain.collectives.full.halving`: they halve and double the chunks
instead of passing on the whole tensor.

**Cost.** Far fewer latencies than a ring's 2(n−1), but every step carries the whole tensor, where all steps of a ring
together carry it twice. `minitrain.costs.communication.crossover` gives the size from which the ring is faster.
Also called binomial tree; minimum spanning tree (MST) algorithm. NCCL's Tree is a pipelined double binary tree, which
has the tree's latency and the ring's bandwidth.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.collectives.full.halving import all_gather, reduce_scatter
from minitrain.comm.chunks import check_root, flat_view
from minitrain.comm.messages import Handle, receive, send

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]


def all_reduce(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks, in place: up the tree to rank 0, and down again. All ranks end with the same bits.

    Args:
        tensor: Contiguous, of any shape and any dtype that can be added; the same shape and dtype on all ranks.
        group: The ranks that talk; None means everyone.
        check: Compare shape and dtype across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: See `minitrain.comm.chunks.flat_view`.
    """
    flat = flat_view("all_reduce", tensor, group, check)
    _up(flat, 0, group)
    _down(flat, 0, group)
    return Handle((), tensor)


def reduce(
    tensor: Shaped[Tensor, "*shape"], to: int = 0, group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks; rank `to` ends with the sum, the others with sums over a part of the ranks.

    Arguments and errors as in `broadcast`.
    """
    flat = flat_view("reduce", tensor, group, check)
    check_root("reduce", "to", to, group, check)
    _up(flat, to, group)
    return Handle((), tensor)


def broadcast(
    tensor: Shaped[Tensor, "*shape"],
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
) -> Handle:
    """Copy `tensor` from rank `source` to all others; with each step twice as many ranks have it.

    Args:
        tensor: Contiguous, of any shape; the same shape and dtype on all ranks.
        source: The rank within `group` whose values all end with.
        group: The ranks that talk; None means everyone.
        check: Compare shape, dtype and source across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: `source` is no rank of the group; else see `minitrain.comm.chunks.flat_view`.
    """
    flat = flat_view("broadcast", tensor, group, check)
    check_root("broadcast", "source", source, group, check)
    _down(flat, source, group)
    return Handle((), tensor)


def _up(flat: Tensor, root: int, group: dist.ProcessGroup | None) -> None:
    """Binomial reduce: `root` ends with the sum.

    In step k the places whose lowest set bit is 2^k send to the place without that bit, and are done.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % ranks  # in the tree, the root at 0
    buffer = torch.empty_like(flat) if place % 2 == 0 else flat  # odd places have no children: they only send
    distance = 1
    while distance < ranks:
        if place & distance:
            # This subtree is added up: hand its sum to the parent. Nothing more to do on the way up.
            send(flat, (rank - distance) % ranks, group).wait()
            return
        if place + distance < ranks:
            # The sum of the neighbouring subtree, which is as large as what this rank has added up so far.
            receive(buffer, (rank + distance) % ranks, group).wait()
            flat.add_(buffer)
        distance *= 2


def _down(flat: Tensor, root: int, group: dist.ProcessGroup | None) -> None:
    """Binomial broadcast: all end with what `root` has."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    place = (rank - root) % ranks  # in the tree, the root at 0
    distance = 1
    while distance < ranks and not place & distance:
        distance *= 2
    if place:
        # From the parent: the place without its lowest set bit.
        receive(flat, (rank - distance) % ranks, group).wait()
    while distance > 1:
        distance //= 2
        if place + distance < ranks:
            # The largest subtree first, since it takes the longest.
            send(flat, (rank + distance) % ranks, group).wait()
