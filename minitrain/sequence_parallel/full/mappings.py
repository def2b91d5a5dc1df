"""The full form of `minitrain.sequence_parallel.mappings` adds a choice of collectives, sending early, and checks.

These are the two operators between a sequence that is whole and its shards.

**Idea.** A ring's all-reduce is a reduce-scatter and then an all-gather. Chapter 08 does both at once, where a
row-parallel product ends, and then every rank computes norm, dropout and residual of all tokens. Instead, stop
half-way: after the reduce-scatter each rank has the finished sum for its own tokens. It does norm, dropout and residual
for these, and the all-gather follows where the next column-parallel product needs all tokens.

**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2, figures 5
and 6, where the two are g and ḡ. (f and f̄ there are f and g of Shoeybi et al. 2019, which chapter 08 has.)

**What each rank holds.** The activations only; t ranks, x of S bytes. Rank r's shard has the tokens r·s/t up to
(r+1)·s/t of every sequence.

**What is sent, when and why.**

| operator | paper | forward | backward |
|---|---|---|---|
| `gather_from_sequence` | g | all-gather | reduce-scatter |
| `reduce_scatter_to_sequence` | ḡ | reduce-scatter | all-gather |

g stands before a product by columns, which wants all tokens; backward, each rank's product adds to the gradient of all
tokens. ḡ stands behind a product by rows, whose y has t summands; backward, each summand has the gradient of all of y.

Activations are `[batch, seq, hidden]`, and collectives work on t chunks of a flat line of memory. So the sequence must
come first while it is sent, as `[seq, batch, hidden]`: chunk r is then rank r's shard. The two functions `start_gather`
and `start_reduce_scatter` are the one place where that is known. It costs nothing more: a shard is copied into the
buffer that is sent, or out of it, in any case.

**Cost.** Each is half of an all-reduce: `minitrain.costs.communication.ring_all_gather`, `ring_reduce_scatter`.

**Also called.** `gather_from_sequence_parallel_region` and `reduce_scatter_to_sequence_parallel_region` (Megatron-LM);
in DTensor the redistributions `Shard(1)` → `Replicate()` and `Partial()` → `Shard(1)`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from minitrain.collectives.full import native
from minitrain.comm.messages import Handle
from minitrain.tensor_parallel.full.checks import check_split, place
from minitrain.tensor_parallel.full.mappings import Collectives


def gather_from_sequence(
    x: Float[Tensor, "batch shard *width"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "batch seq *width"]:
    """g: all-gather forward, reduce-scatter backward. Korthikanti et al. 2022, §4.2.2.

    Args:
        x: This rank's tokens, `[batch, seq/tp, *width]`; the same shape and dtype on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries x and its gradient.
        check: Compare shape and dtype across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: This rank is not in the group; with checking also if shape or dtype differ between ranks.
    """
    place(group)
    return _Gather.apply(x, group, collectives, check)


def reduce_scatter_to_sequence(
    x: Float[Tensor, "batch seq *width"],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "batch shard *width"]:
    """ḡ: reduce-scatter forward, all-gather backward. Korthikanti et al. 2022, §4.2.2.

    Args:
        x: This rank's summand of all tokens; the same shape and dtype on all ranks.
        group: The tensor-parallel ranks; None means everyone.
        collectives: Who carries x and its gradient.
        check: Compare shape and dtype across ranks first. None: in demos and notebooks only.

    Raises:
        ValueError: The sequence does not divide by the ranks, or this rank is not in the group; with checking also if
            shape or dtype differ between ranks.
    """
    check_split("seq", x.shape[1], place(group)[1])
    return _ReduceScatter.apply(x, group, collectives, check)


g = gather_from_sequence
"""The paper's name."""

g_bar = reduce_scatter_to_sequence
"""The paper's name, ḡ."""


def start_gather(
    x: Float[Tensor, "batch shard *width"],
    group: dist.ProcessGroup | None,
    collectives: Collectives,
    check: bool | None,
) -> Handle:
    """Start collecting the shards; `wait()` gives all tokens, `[seq, batch, *width]`, in memory of their own."""
    rank, ranks = place(group)
    batch, shard, *width = x.shape
    whole = x.new_empty(ranks, shard, batch, *width)
    whole[rank] = x.transpose(0, 1)
    # Every rank brings its tokens and gets all of them, one rank's behind the other's.
    return collectives.all_gather(whole.view(ranks * shard, batch, *width), group, check=check)


def start_reduce_scatter(
    x: Float[Tensor, "seq batch *width"], group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
) -> Handle:
    """Start adding x, contiguous, in place over all ranks; `own_tokens` of the handle gives this rank's.

    Raises:
        ValueError: The sequence does not divide by the ranks.
    """
    check_split("seq", x.shape[0], place(group)[1])
    # Every rank puts its summand of all tokens in, and gets the sum of its own tokens out.
    return collectives.reduce_scatter(x, group, check=check)


def own_tokens(
    sent: Handle, x: Float[Tensor, "seq batch *width"], bias: Float[Tensor, " width"] | None = None
) -> Float[Tensor, "batch shard *width"]:
    """Wait for a reduce-scatter of x; this rank's tokens, plus `bias`, in memory of their own."""
    arrived = sent.wait()
    assert arrived is not None
    mine = arrived.view(-1, *x.shape[1:]).transpose(0, 1)  # [batch, seq/tp, *width], inside the memory of all tokens
    own = torch.empty_like(mine, memory_format=torch.contiguous_format)
    # Copied even where it is contiguous already, for who keeps a view keeps the memory of all tokens.
    return own.copy_(mine) if bias is None else torch.add(mine, bias, out=own)


# Backward of each is forward of the other, so they can be differentiated any number of times.


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
    ) -> Tensor:
        ctx.arguments = group, collectives
        whole = start_gather(x, group, collectives, check).wait()
        assert whole is not None
        return whole.transpose(0, 1)  # [batch, seq, *width]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _ReduceScatter.apply(gradients[0], *ctx.arguments, False), None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup | None, collectives: Collectives, check: bool | None
    ) -> Tensor:
        ctx.arguments = group, collectives
        # A copy, since it is overwritten, and autograd may hand x to others too.
        summand = x.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # [seq, batch, *width]
        return own_tokens(start_reduce_scatter(summand, group, collectives, check), summand)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _Gather.apply(gradients[0], *ctx.arguments, False), None, None, None
