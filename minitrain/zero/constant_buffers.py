"""Constant-size buffers (C_B of ZeRO-R): gradients are summed through one buffer, however large the model is.

**Idea.** Large messages use a link better than small ones, so gradients are copied side by side into one fused buffer
before they are sent, often in float32. A buffer for all of them grows with the model. A buffer of constant size that is
filled, all-reduced and emptied as often as needed does not, and is efficient if its message is long enough.
**Source.** Rajbhandari et al. 2020, "ZeRO", §3.2 and §6.2.
**Sent.** All gradients once, in ⌈Ψ/B⌉ all-reduces of at most B elements.
**Cost.** 4B bytes in float32, in place of 4Ψ; ⌈Ψ/B⌉ times a message's latency in place of once. Buckets as in
`minitrain.data_parallel.bucketed` hold whole tensors, so they are at least as large as the largest gradient.
Also called `reduce_bucket_size` (DeepSpeed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


def fillings(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """What is in the buffer of `size` elements, time after time: pieces of the tensors, as flat views."""
    pieces: list[Tensor] = []
    room = size
    for tensor in tensors:
        assert tensor.is_contiguous(), "a piece is written back through a flat view"
        rest = tensor.detach().view(-1)
        while len(rest):
            # A tensor may begin in one filling and end in another, so the largest one needs no larger buffer.
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= len(piece)
            if not room:
                yield pieces
                pieces, room = [], size
    if pieces:
        yield pieces


def all_reduce_through(buffer: Tensor, tensors: Iterable[Tensor], group: Group = None) -> None:
    """Add each tensor over all ranks, in place.

    Args:
        buffer: One dim, of any size from 1, and of the dtype in which to add; its contents are overwritten.
        tensors: The same shapes in the same order on all ranks, such as `[p.grad for p in module.parameters()]`.
        group: The ranks that add; None means everyone.
    """
    assert buffer.dim() == 1 and len(buffer), "the buffer is one flat tensor with room for an element at least"
    for pieces in fillings(tensors, len(buffer)):
        sizes = [len(piece) for piece in pieces]
        filled = buffer[: sum(sizes)]  # all of it but in the last round
        slots = filled.split(sizes)
        # Into the buffer, in its precision.
        for slot, piece in zip(slots, pieces, strict=True):
            slot.copy_(piece)
        # One long message in place of a short one for each tensor.
        all_reduce(filled, group).wait()
        # Back, because the next round needs the buffer.
        for slot, piece in zip(slots, pieces, strict=True):
            piece.copy_(slot)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
