"""g and ḡ: the two operators between a rank's own tokens and all tokens of a sequence.

**Idea.** An all-reduce in a ring is a reduce-scatter followed by an all-gather. Tensor parallelism does one right after
the other. If we do them apart, each rank has only its own tokens in between, and computes norm, dropout and residual
for these tokens alone. ḡ is the reduce-scatter, g the all-gather, and each is the other's backward.
**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2. This g is
not the g of tensor parallelism, an all-reduce, which the same paper calls f̄. Megatron-LM's code calls the two
`gather_from_sequence_parallel_region` and `reduce_scatter_to_sequence_parallel_region`.
**Sent.** g: an all-gather in forward, a reduce-scatter in backward; ḡ the other way round. In each, a rank sends
(n−1)/n of the bytes of the whole sequence, half as much as in an all-reduce.
**Cost.** The time of both, since nothing is computed meanwhile, and a copy of what is sent, with the sequence first.
The full form, `minitrain.sequence_parallel.full.mappings`, adds a choice of collectives, an early start, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_gather, rank_and_size, reduce_scatter


def gather_from_sequence(x: Tensor, group: Group = None) -> Tensor:
    """g: this rank's tokens, [batch, seq/n, hidden], to all tokens, [batch, seq, hidden]."""
    return Gather.apply(x, group)


def reduce_scatter_to_sequence(x: Tensor, group: Group = None) -> Tensor:
    """ḡ: a partial sum for all tokens, [batch, seq, hidden], to the sum for this rank's, [batch, seq/n, hidden]."""
    _, ranks = rank_and_size(group)
    assert x.shape[1] % ranks == 0, f"a sequence of {x.shape[1]} tokens cannot be divided over {ranks} ranks"
    return ReduceScatter.apply(x, group)


# The paper's names.
g, g_bar = gather_from_sequence, reduce_scatter_to_sequence


class Gather(torch.autograd.Function):
    """g. Its backward is ḡ's forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # The sequence comes first, because collectives divide and concatenate along dim 0.
        shard = x.transpose(0, 1)  # [seq/n, batch, hidden]
        # Every rank sends its tokens, and receives all tokens in the order of the ranks.
        whole: Any = all_gather(shard, group).wait()  # [seq, batch, hidden]
        return whole.transpose(0, 1)  # [batch, seq, hidden]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # Every rank used all tokens, so a token's gradient is a sum over ranks, and its owner needs the sum.
        return ReduceScatter.apply(gradient, ctx.group), None


class ReduceScatter(torch.autograd.Function):
    """ḡ. Its backward is g's forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        whole = x.transpose(0, 1).contiguous()  # [seq, batch, hidden]
        # Every rank sends its partial sums for all tokens, and receives the sums for its own.
        shard: Any = reduce_scatter(whole, group).wait()  # [seq/n, batch, hidden]
        return shard.transpose(0, 1)  # [batch, seq/n, hidden]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # Each rank's partial sum of a token has the gradient of the token's sum, so all ranks need it.
        return Gather.apply(gradient, ctx.group), None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
