"""All-gather of keys and values: each rank attends with its own queries to all tokens.

**Idea.** Gather K and V, keep Q where it is, and call any attention core. The rank has all keys, so that any mask can
be used, such as a document mask, under which a token sees only tokens of its own document. With grouped-query
attention K and V are small compared with Q.
**Source.** Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2, "Context parallelism for long sequences".
**Sent.** An all-gather of K and one of V forward, a reduce-scatter of each gradient backward. In each, a rank sends
(n−1)/n of the bytes of the whole tensor.
**Cost.** Every rank holds K and V of the whole sequence until backward, n times as much as its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minitrain.collectives import ring
from minitrain.comm.messages import Group, rank_and_size

SEQ = 2  # dim of [batch, heads, seq, head]


def attention(
    q: Tensor,  # [batch, heads, seq/n, head], this rank's tokens
    k: Tensor,  # [batch, key heads, seq/n, head]
    v: Tensor,  # [batch, key heads, seq/n, head]
    causal: bool = True,
    positions: Tensor | None = None,  # [seq], of all ranks' tokens in the order of ranks
    documents: Tensor | None = None,  # [batch, seq], the number of each token's document, in that order
    group: Group = None,
) -> Tensor:
    """Attention of this rank's tokens to all that they may see, [batch, heads, seq/n, head]."""
    rank, ranks = rank_and_size(group)
    seq = ranks * q.shape[SEQ]
    assert documents is None or documents.shape[1] == seq, f"documents of all {seq} tokens, not only of this rank's"
    k, v = Gather.apply(k, group), Gather.apply(v, group)  # [batch, key heads, seq, head]

    # Positions are true ones: rank r's first token is not token 0. They may come in any order,
    # so that ranks can share the work of a causal mask evenly.
    keys = torch.arange(seq, device=q.device) if positions is None else positions  # [seq]
    queries = keys.chunk(ranks)[rank]  # [seq/n]
    visible = keys <= queries[:, None] if causal else torch.ones_like(keys <= queries[:, None])  # [seq/n, seq]
    if documents is not None:
        # A document may begin on one rank and end on another.
        own = documents.chunk(ranks, 1)[rank]  # [batch, seq/n]
        same = own[:, None, :, None] == documents[:, None, None, :]  # [batch, 1, seq/n, seq]
        visible = visible & same
    return scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


class Gather(torch.autograd.Function):
    """K or V of this rank's tokens to K or V of all tokens; backward adds up what all ranks' queries want of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        rank, ranks = rank_and_size(group)
        parts = x.new_empty(ranks, *x.shape)  # [n, batch, key heads, seq/n, head]
        parts[rank] = x
        # Every rank brings its own part, and ends with all of them.
        ring.all_gather(parts, group)
        return torch.cat(tuple(parts), SEQ)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rank, ranks = rank_and_size(ctx.group)
        parts = torch.stack(gradients[0].chunk(ranks, SEQ))  # [n, batch, key heads, seq/n, head]
        # A key was seen by queries of many ranks: its gradient is a sum over ranks, which its owner needs.
        ring.reduce_scatter(parts, ctx.group)
        return parts[rank], None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
