"""The full form of `minitrain.collectives.halving` adds any number of ranks, and checks.

**Idea.** Let m be the largest power of two up to n, and e = n − m. The first 2e ranks fold into pairs: the even rank
sends its whole tensor to the odd one, which adds it and takes part for both. The m ranks that remain halve and double.
At the end each even rank gets its result from its partner.

**Source.** Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", sections
"Allgather", "Reduce-Scatter", "Allreduce".
**Cost.** Folding takes one message of S bytes more at each end, 2(α + βS), and a receive buffer of the tensor's size on
the odd ranks. Exactly: `minitrain.costs.communication.halving_all_reduce`; time: `halving_all_reduce_time`. The
partners are far apart, so on a network whose far links are slow or shared a ring may still win.
Also called Rabenseifner's algorithm; butterfly; recursive vector halving and distance halving.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.chunks import flat_view
from minitrain.comm.messages import Handle, exchange, receive, send


class Fold:
    """Which ranks halve and double, and for whom.

    Attributes:
        rank: This rank.
        extra: Number of pairs that are folded: ranks 0 and 1, 2 and 3, …
        cores: Number of ranks that remain, a power of two.
        core: This rank's number among them; None on an even rank that was folded into the next.
        partner: The other rank of the pair; None on a rank that was not folded.
    """

    def __init__(self, rank: int, ranks: int):
        self.rank = rank
        self.cores = 1 << (ranks.bit_length() - 1)
        self.extra = ranks - self.cores
        folded = rank < 2 * self.extra
        self.partner = rank ^ 1 if folded else None
        self.core = None if folded and rank % 2 == 0 else rank - min(self.extra, (rank + 1) // 2)

    def rank_of(self, core: int) -> int:
        """The rank whose number among the cores is `core`."""
        return core + min(core + 1, self.extra)

    def chunks_of(self, chunks: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
        """What each core ends with: its rank's chunk, and that of the rank folded into it, which lies before it."""
        sizes = [len(chunk) for chunk in chunks]
        pairs = [sizes[2 * pair] + sizes[2 * pair + 1] for pair in range(self.extra)]
        return list(flat.split(pairs + sizes[2 * self.extra :]))


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
    fold = Fold(dist.get_rank(group), dist.get_world_size(group))
    blocks = flat.tensor_split(fold.cores)  # equal blocks, wherever they lie: every rank ends with all
    _fold(flat, fold, group)
    if fold.core is not None:
        _halve(flat, blocks, fold, group)
        _double(flat, blocks, fold, group)
    _unfold(flat, fold, group)
    return Handle((), tensor)


def reduce_scatter(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Add `tensor` over all ranks; rank r ends with the sum in chunk r, and the other chunks are undefined.

    `wait()` gives that chunk, a flat view of `tensor`. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("reduce_scatter", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    fold = Fold(rank, ranks)
    chunks = flat.tensor_split(ranks)
    _fold(flat, fold, group)
    if fold.core is not None:
        _halve(flat, fold.chunks_of(chunks, flat), fold, group)
    # One chunk, where an all-reduce would send back everything.
    if fold.partner is not None:
        if fold.core is None:
            receive(chunks[rank], fold.partner, group).wait()  # the partner halved for both: this is our chunk
        else:
            send(chunks[fold.partner], fold.partner, group).wait()  # give the partner its chunk, and keep our own
    return Handle((), chunks[rank])


def all_gather(
    tensor: Shaped[Tensor, "*shape"], group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Handle:
    """Collect the chunks: rank r brings chunk r of `tensor`, and all end with all chunks.

    What the other chunks held before is overwritten. Arguments and errors as in `all_reduce`.
    """
    flat = flat_view("all_gather", tensor, group, check)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    fold = Fold(rank, ranks)
    chunks = flat.tensor_split(ranks)
    if fold.partner is not None:
        if fold.core is None:
            send(chunks[rank], fold.partner, group).wait()  # the partner brings our chunk as well as its own
        else:
            receive(chunks[fold.partner], fold.partner, group).wait()  # the partner's chunk lies just before ours
    if fold.core is not None:
        _double(flat, fold.chunks_of(chunks, flat), fold, group)
    _unfold(flat, fold, group)
    return Handle((), tensor)


def _halve(flat: Tensor, blocks: Sequence[Tensor], fold: Fold, group: dist.ProcessGroup | None) -> None:
    """Recursive halving: core c ends with block c of the sum.

    In step k a core exchanges S/2^k bytes with the core whose number differs in the k-th highest bit, so every pair is
    busy in both directions in every step.
    """
    assert fold.core is not None
    starts = _starts(blocks)
    buffer = None
    distance = fold.cores // 2
    while distance:
        partner = fold.core ^ distance
        first, other = fold.core & -distance, partner & -distance  # where the half of each of the two begins
        own = flat[starts[first] : starts[first + distance]]
        outgoing = flat[starts[other] : starts[other + distance]]
        if buffer is None:
            buffer = torch.empty_like(own)  # one for all steps: each half is a part of the one before
        incoming = buffer[: len(own)]
        # Send the half that the partner continues with, receive the half that this rank continues with.
        exchange(outgoing, fold.rank_of(partner), incoming, fold.rank_of(partner), group).wait()
        own.add_(incoming)
        distance //= 2


def _double(flat: Tensor, blocks: Sequence[Tensor], fold: Fold, group: dist.ProcessGroup | None) -> None:
    """Recursive doubling: core c brings block c, and all end with all blocks."""
    assert fold.core is not None
    starts = _starts(blocks)
    distance = 1
    while distance < fold.cores:
        partner = fold.core ^ distance
        first, other = fold.core & -distance, partner & -distance
        outgoing = flat[starts[first] : starts[first + distance]]
        incoming = flat[starts[other] : starts[other + distance]]
        # Send all that this rank has, receive as much of what is missing, straight into its place.
        exchange(outgoing, fold.rank_of(partner), incoming, fold.rank_of(partner), group).wait()
        distance *= 2


def _fold(flat: Tensor, fold: Fold, group: dist.ProcessGroup | None) -> None:
    """The odd rank of each pair adds what the even one has."""
    if fold.partner is None:
        return
    if fold.core is None:
        send(flat, fold.partner, group).wait()  # everything: the partner halves for both
    else:
        buffer = torch.empty_like(flat)
        receive(buffer, fold.partner, group).wait()  # the whole tensor of the rank that sits out
        flat.add_(buffer)


def _unfold(flat: Tensor, fold: Fold, group: dist.ProcessGroup | None) -> None:
    """The odd rank of each pair sends the whole result to the even one."""
    if fold.partner is None:
        return
    if fold.core is None:
        receive(flat, fold.partner, group).wait()  # the result that the partner took part in
    else:
        send(flat, fold.partner, group).wait()  # the rank that sat out has nothing of it yet


def _starts(blocks: Sequence[Tensor]) -> list[int]:
    """Where each block begins in the flat tensor, and finally where the tensor ends."""
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block))
    return starts
