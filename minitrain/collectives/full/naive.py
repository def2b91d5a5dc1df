"""The full form of `minitrain.collectives.naive` adds reduce_scatter, all_gather, broadcast, and checks.

**Sent.** As in the small form; in a reduce-scatter, rank 0 sends to every rank only its chunk.
**Cost.** The time is that of rank 0's link, and grows with the number of ranks whatever network there is:
`minitrain.costs.communication.naive_all_reduce` and `naive_all_reduce_time`.
Also called flat or linear reduce and broadcast; a parameter server with one server is the same picture.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.chunks import check_root, flat_view
from minitrain.comm.messages import Handle, receive, send

ROOT = 0


def all_reduce(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks, in place; every rank ends with the sum, to the same bits.

    Args:
        tensor: Contiguous, of any shape and any dtype that can be added; the same shape and dtype on all ranks.
        group: The ranks that talk; None means everyone.
        check: Compare shape and dtype across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: See `minitrain.comm.chunks.flat_view`.
    """
    flat = flat_view("all_reduce", tensor, group, check)
    _add_at_root(flat, group)
    _send_from(flat, ROOT, group)
    return Handle((), tensor)


def reduce_scatter(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks; rank r ends with the sum in chunk r, and the other chunks are undefined.

    `wait()` gives that chunk, a flat view of `tensor`. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("reduce_scatter", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(ranks)
    _add_at_root(flat, group)
    if rank == ROOT:
        for other in _others(group):
            send(chunks[other], other, group).wait()  # to each rank only its own chunk of the sum
    else:
        receive(chunks[rank], ROOT, group).wait()  # this rank's chunk, straight into its place
    return Handle((), chunks[rank])


def all_gather(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Collect the chunks: rank r brings chunk r of `tensor`, and all end with all chunks.

    What the other chunks held before is overwritten. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("all_gather", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(ranks)
    if rank == ROOT:
        for other in _others(group):
            receive(chunks[other], other, group).wait()  # one chunk from each rank, straight into its place
    else:
        send(chunks[rank], ROOT, group).wait()  # what this rank brings; the others get it from the root
    _send_from(flat, ROOT, group)
    return Handle((), tensor)


def broadcast(
    tensor: Shaped[Tensor, "*shape"],
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
) -> Handle:
    """Copy `tensor` from rank `source` to all others, one after the other.

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
    _send_from(flat, source, group)
    return Handle((), tensor)


def _add_at_root(flat: Tensor, group: dist.ProcessGroup | None) -> None:
    """The root ends with the sum over all ranks; the others keep what they had."""
    if dist.get_rank(group) != ROOT:
        send(flat, ROOT, group).wait()  # the whole tensor: the root needs every element of every rank
        return
    buffer = torch.empty_like(flat)
    for other in _others(group):
        receive(buffer, other, group).wait()  # the next rank's tensor; the ranks after it wait in line
        flat.add_(buffer)


def _send_from(flat: Tensor, source: int, group: dist.ProcessGroup | None) -> None:
    """All ranks end with what `source` has."""
    rank = dist.get_rank(group)
    if rank != source:
        receive(flat, source, group).wait()  # the result, straight into the tensor
        return
    for other in range(dist.get_world_size(group)):
        if other != rank:
            send(flat, other, group).wait()  # the whole tensor, as often as there are other ranks


def _others(group: dist.ProcessGroup | None) -> range:
    return range(1, dist.get_world_size(group))
