"""The full form of `minitrain.collectives.ring` adds receives posted ahead, a pipelined broadcast, and checks.

In step s = 0 … n−2 rank r sends one chunk to rank r+1 and receives another from rank r−1 (indices are modulo n):

| | sends chunk | receives chunk | and then |
|---|---|---|---|
| reduce-scatter | r−1−s | r−2−s | adds its own values to it |
| all-gather | r−s | r−1−s | keeps it |

**Cost.** Exactly: `minitrain.costs.communication.ring_all_reduce`; time: `ring_all_reduce_time`; at most three receive
buffers. No algorithm built from point-to-point messages makes the busiest rank send fewer bytes.
Also called bucket algorithm; NCCL's Ring. Its halves are also called scatter-reduce and broadcast phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.chunks import Chunks, check_root, flat_view
from minitrain.comm.groups import backend
from minitrain.comm.messages import Handle, exchange, receive, send
from minitrain.comm.native import receive_ahead

AHEAD = 3  # receives that are posted before they are waited for, each with a buffer of its own


def all_reduce(
    tensor: Shaped[Tensor, "*shape"],
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
    buffers: list[Tensor] | None = None,
) -> Handle:
    """Add `tensor` over all ranks, in place; every rank ends with the sum, to the same bits.

    Args:
        tensor: Contiguous, of any shape and any dtype that can be added; the same shape and dtype on all ranks.
        group: The ranks that talk; None means everyone.
        check: Compare shape and dtype across ranks first; None: in demos and notebooks only.
        buffers: A list, empty at first, in which the receive buffers stay for the next call: touching fresh memory
            takes longer than adding it. Give it to one call at a time.

    Raises:
        ValueError: See `minitrain.comm.chunks.flat_view`.
    """
    chunks = flat_view("all_reduce", tensor, group, check).tensor_split(dist.get_world_size(group))
    arriving: list[Handle] = []
    # A chunk comes back only after it has visited all ranks, so it can be received while its old values still leave.
    leaving = start_reduce_scatter_chunks(
        chunks, group, lambda: arriving.extend(post_all_gather_receives(chunks, group)), buffers
    )
    all_gather_chunks(chunks, group, arriving)
    for departure in leaving:
        departure.wait()
    return Handle((), tensor)


def reduce_scatter(
    tensor: Shaped[Tensor, "*shape"],
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
    buffers: list[Tensor] | None = None,
) -> Handle:
    """Add `tensor` over all ranks; rank r ends with the sum in chunk r, and with partial sums in the other chunks.

    `wait()` gives that chunk, a flat view of `tensor`. Arguments and errors as in `all_reduce`.
    """
    chunks = flat_view("reduce_scatter", tensor, group, check).tensor_split(dist.get_world_size(group))
    # The last sends are waited for, too, since the caller may overwrite a chunk that was sent.
    for departure in start_reduce_scatter_chunks(chunks, group, buffers=buffers):
        departure.wait()
    return Handle((), chunks[dist.get_rank(group)])


def all_gather(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Collect the chunks: rank r brings chunk r of `tensor`, and all end with all chunks.

    What the other chunks held before is overwritten. Arguments and errors as in `all_reduce`.
    """
    chunks = flat_view("all_gather", tensor, group, check).tensor_split(dist.get_world_size(group))
    all_gather_chunks(chunks, group)
    return Handle((), tensor)


def broadcast(
    tensor: Shaped[Tensor, "*shape"],
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    check: bool | None = None,
) -> Handle:
    """Copy `tensor` from rank `source` to all others along the ring, chunk after chunk as in a pipeline.

    A rank passes a chunk on while it receives the next, so that all links work at once and the last rank has everything
    after 2(n−1) steps of a chunk each, not after n−1 steps of the whole tensor.

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
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    position = (rank - source) % ranks  # along the ring, the source at 0
    nothing = flat[:0]  # an empty tensor is not sent
    received = nothing
    for chunk in (*flat.tensor_split(ranks), nothing):
        outgoing = chunk if position == 0 else received  # the source has all chunks from the start
        incoming = nothing if position == 0 else chunk
        if position == ranks - 1:
            outgoing = nothing  # the next rank would be the source
        # Pass on the chunk of the last step and receive the next, at once: neither direction of the link is idle.
        if outgoing.numel() or incoming.numel():
            exchange(outgoing, (rank + 1) % ranks, incoming, (rank - 1) % ranks, group).wait()
        received = incoming
    return Handle((), tensor)


def start_reduce_scatter_chunks(
    chunks: Chunks,
    group: dist.ProcessGroup | None = None,
    after_last_receive: Callable[[], None] = lambda: None,
    buffers: list[Tensor] | None = None,
) -> list[Handle]:
    """The first way round: this rank's own chunk is summed over all ranks; the others hold partial sums.

    Chunk c starts at rank c+1 and has visited all others when it arrives at rank c, so it is finished there. `chunks`
    are as many flat contiguous tensors as there are ranks, of the same sizes on all ranks. The last sends may still be
    under way: wait for the handles that it returns.

    `after_last_receive` is called once all receives of this way round are posted, so that those of the all-gather can
    be posted early. NCCL uses neither it nor `buffers`.
    """
    rank, ranks = dist.get_rank(group), len(chunks)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    steps = [(chunks[(rank - 1 - step) % ranks], chunks[(rank - 2 - step) % ranks]) for step in range(ranks - 1)]
    if not steps:
        return []
    if backend(group) == "nccl":
        pair = chunks[0].new_empty(min(2, len(steps)), max(map(len, chunks)))  # in turn
        for step, (outgoing, own) in enumerate(steps):
            buffer = pair[step % 2, : len(own)]
            # Hand the sum so far to the next rank, and take the one that the previous rank has made.
            exchange(outgoing, after, buffer, before, group).wait()
            own.add_(buffer)
        return []
    # Buffers in turn: one is added while others fill.
    longest, count = max(map(len, chunks)), min(AHEAD, len(steps))
    taken = [] if buffers is None else [buffer for buffer in buffers if buffer.dtype == chunks[0].dtype]
    taken = [buffer for buffer in taken if len(buffer) >= longest][:count]
    taken += [chunks[0].new_empty(longest) for _ in range(count - len(taken))]
    if buffers is not None:
        buffers.clear()  # not kept where a message fails: a receive that was posted may still fill them
    incoming = [taken[step % count][: len(own)] for step, (_, own) in enumerate(steps)]
    # The same, but receives are posted steps ahead: gloo then sends without asking first, and its thread need not wait
    # for ours. (On NCCL a receive that waits holds up the sends after it; so there the two go together, above.)
    arriving: list[Handle] = []

    def post(step: int) -> None:
        arriving.append(receive(incoming[step], before, group))
        if step == len(steps) - 1:
            after_last_receive()

    for step in range(count):
        post(step)
    leaving = []
    for step, (outgoing, own) in enumerate(steps):
        leaving.append(send(outgoing, after, group))  # the sum so far
        arriving[step].wait()
        own.add_(incoming[step])
        if step + count < len(steps):
            post(step + count)  # into the buffer that is free again
    if buffers is not None:
        buffers += taken
    return leaving


def all_gather_chunks(chunks: Chunks, group: dist.ProcessGroup | None = None, arriving: Sequence[Handle] = ()) -> None:
    """The second way round: rank r's chunk r reaches all ranks; `arriving` is of `post_all_gather_receives`."""
    rank, ranks = dist.get_rank(group), len(chunks)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    steps = [(chunks[(rank - step) % ranks], chunks[(rank - 1 - step) % ranks]) for step in range(ranks - 1)]
    if backend(group) == "nccl":
        for outgoing, incoming in steps:
            # Pass on the chunk that came last, and receive the next one straight into its place.
            exchange(outgoing, after, incoming, before, group).wait()
        return
    leaving = []
    for (outgoing, _), arrival in zip(steps, arriving or post_all_gather_receives(chunks, group), strict=True):
        leaving.append(send(outgoing, after, group))  # the chunk that came last
        arrival.wait()
    for departure in leaving:
        departure.wait()


def post_all_gather_receives(chunks: Chunks, group: dist.ProcessGroup | None = None) -> list[Handle]:
    """Post all receives of `all_gather_chunks`, each straight into its chunk; not for NCCL.

    A chunk may still be in use: the left neighbor sends it only when this rank's own sum has gone round to it.
    """
    rank, ranks = dist.get_rank(group), len(chunks)
    before = (rank - 1) % ranks
    return [receive_ahead(chunks[(rank - 1 - step) % ranks], before, group) for step in range(ranks - 1)]
