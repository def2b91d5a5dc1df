"""torch's own collectives, under the names that all full forms use: verbs that return before they are done.

**Idea.** The library that carries the messages (NCCL between GPUs, gloo between CPUs) also has the algorithms, in C++
and on the GPU, and picks one by size and topology. This file calls it, and adds only a common set of names. A caller
can keep computing until it needs the result, and calls `wait()` on the handle before it uses the tensor.

**Source.** `torch.distributed`; NCCL's rings and trees: https://docs.nvidia.com/deeplearning/nccl/user-guide/.
**Sent.** The library decides, below PyTorch, so the ledger sees a call and its payload, not the bytes on the wire.
**Cost.** At best `minitrain.costs.communication.ring_all_reduce`: the busiest rank sends less only where the network
itself adds (NVLS, SHARP). Also called `psum`, `psum_scatter`, `all_gather` (JAX); `MPI_Allreduce`,
`MPI_Reduce_scatter_block`, `MPI_Allgather`, `MPI_Bcast`.
NCCL's own names are `ncclAllReduce`, `ncclReduceScatter`, `ncclAllGather` and `ncclBroadcast`.
"""

from __future__ import annotations

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.chunks import check_root, flat_view
from minitrain.comm.messages import Handle
from minitrain.watch.observers import Communication, Watch, Work, observe

# torch 2.13 has new names and warns about the old ones; torch 2.11 has only the old.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Start adding `tensor` over all ranks, in place; every rank ends with the sum.

    Args:
        tensor: Contiguous, of any shape; the same shape and dtype on all ranks.
        group: The ranks that talk; None means everyone.
        check: Compare shape and dtype across ranks first; None: in demos and notebooks only.

    Raises:
        ValueError: See `minitrain.comm.chunks.flat_view`.
    """
    flat = flat_view("all_reduce", tensor, group, check)
    # One collective: every rank puts its tensor in and gets the sum out.
    watches = _observe("all_reduce", flat, group)
    return Handle([Work(dist.all_reduce(flat, group=group, async_op=True), watches)], tensor)


def reduce_scatter(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Start adding `tensor` over all ranks; rank r ends with the sum in chunk r, and the other chunks are undefined.

    `wait()` gives that chunk, a flat view of `tensor`. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("reduce_scatter", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(ranks)
    mine = own = chunks[rank]
    line, then = flat, []
    if flat.numel() % ranks:
        # Torch wants chunks of one size; ours are those of `torch.tensor_split`.
        padded = flat.new_zeros(ranks, chunks[0].numel())  # [rank, longest chunk]
        for row, chunk in zip(padded, chunks, strict=True):
            row[: chunk.numel()] = chunk
        line, own = padded.view(-1), padded[rank]
        then = [lambda: mine.copy_(padded[rank, : mine.numel()])]
    watches = _observe("reduce_scatter", flat, group)
    # One collective: every rank puts its tensor in and gets its own chunk of the sum out.
    return Handle([Work(_reduce_scatter(own, line, group=group, async_op=True), watches)], mine, *then)


def all_gather(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Start collecting the chunks: rank r brings chunk r of `tensor`, and all end with all chunks.

    What the other chunks held before is overwritten. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("all_gather", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    chunks = flat.tensor_split(ranks)
    own, line, then = chunks[rank], flat, []
    if flat.numel() % ranks:
        padded = flat.new_zeros(ranks, chunks[0].numel())  # [rank, longest chunk]
        padded[rank, : own.numel()] = own
        line, own = padded.view(-1), padded[rank]
        then = [lambda: [chunk.copy_(row[: chunk.numel()]) for row, chunk in zip(padded, chunks, strict=True)]]
    watches = _observe("all_gather", flat, group)
    # One collective: every rank puts its chunk in and gets all chunks out.
    return Handle([Work(_all_gather(line, own, group=group, async_op=True), watches)], tensor, *then)


def broadcast(
    tensor: Shaped[Tensor, "*shape"],
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
) -> Handle:
    """Start copying `tensor` from rank `source` of the group to all others, in place.

    Arguments and errors as in `all_reduce`; `source` must be a rank of the group, the same on all.
    """
    flat = flat_view("broadcast", tensor, group, check)
    check_root("broadcast", "source", source, group, check)
    # One collective: the source puts its tensor in, the others get it out.
    watches = _observe("broadcast", flat, group)
    return Handle([Work(dist.broadcast(flat, group_src=source, group=group, async_op=True), watches)], tensor)


def _observe(verb: str, flat: Tensor, group: dist.ProcessGroup | None) -> list[Watch]:
    """Tell the observers of a collective whose arguments the ranks have compared already, by `flat_view`."""
    return observe(Communication(verb, flat, group, compared=True))


def receive_ahead(into: Tensor, source: int, group: dist.ProcessGroup | None = None) -> Handle:
    """`messages.receive` into memory that is still in use, since the sender sends only when it has heard from here."""
    if not into.numel():
        return Handle((), into)
    watches = observe(Communication("receive", into, group, source, ahead=True))
    # One message; torch's call, which the observers do not look at here.
    return Handle([Work(dist.irecv(into, group=group, group_src=source), watches)], into)
