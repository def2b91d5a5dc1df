"""g and ḡ: between tokens that are divided over the ranks and all tokens of a sequence, forward and backward.

**Idea.** A ring's all-reduce is a reduce-scatter, and then an all-gather. Tensor parallelism does both at once; done
apart, each rank has only its own tokens in between, and norm, dropout and residual work on these alone.
**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2. Also
called `gather_from_sequence_parallel_region` and `reduce_scatter_to_sequence_parallel_region` (Megatron-LM).
**Sent.** g: an all-gather forward, a reduce-scatter backward. ḡ: the same two, the other way round. Each rank sends
(n−1)/n of the whole sequence's bytes, half of what an all-reduce sends.
**Cost.** A copy of what is sent, with the sequence first.
The full form, `minitrain.sequence_parallel.full.mappings`, adds collectives of one's own, starting early, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_gather, place, reduce_scatter


def gather_from_sequence(x: Tensor, group: Group = None) -> Tensor:
    """g: this rank's tokens [batch, seq/n, hidden] in, all tokens [batch, seq, hidden] out."""
    return Gather.apply(x, group)


def reduce_scatter_to_sequence(x: Tensor, group: Group = None) -> Tensor:
    """ḡ: a partial sum of all tokens [batch, seq, hidden] in, this rank's of the sum [batch, seq/n, hidden] out."""
    _, ranks = place(group)
    assert x.shape[1] % ranks == 0, f"a sequence of {x.shape[1]} tokens cannot be divided over {ranks} ranks"
    return ReduceScatter.apply(x, group)


class Gather(torch.autograd.Function):
    """g. Every rank uses all tokens, so the gradient of each is a sum over ranks, which its owner needs: ḡ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # The sequence comes first, because collectives cut and join along dim 0.
        shard = x.transpose(0, 1)  # [seq/n, batch, hidden]
        # Every rank brings its tokens, and all get all of them, in the order of the ranks.
        whole: Any = all_gather(shard, group).wait()  # [seq, batch, hidden]
        return whole.transpose(0, 1)  # [batch, seq, hidden]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ReduceScatter.apply(gradients[0], ctx.group), None


class ReduceScatter(torch.autograd.Function):
    """ḡ. A token's sum is on one rank, and its gradient is that of each of the n partial sums: g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        whole = x.transpose(0, 1).contiguous()  # [seq, batch, hidden]
        # Every rank brings partial sums of all tokens, and gets the sums of its own.
        shard: Any = reduce_scatter(whole, group).wait()  # [seq/n, batch, hidden]
        return shard.transpose(0, 1)  # [batch, seq/n, hidden]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return Gather.apply(gradients[0], ctx.group), None


g, g_bar = gather_from_sequence, reduce_scatter_to_sequence  # the paper's names


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
