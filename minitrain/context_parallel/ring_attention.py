"""Ring attention: each rank keeps its queries, while keys and values travel around the ring of ranks.

**Idea.** Rank r holds the r-th chunk of the sequence. Softmax in blocks (`online_softmax`) takes keys in any order, so
a rank computes with the chunk that it has while it sends that chunk on and receives the next one.
**Source.** Liu, Zaharia & Abbeel 2023, "Ring Attention with Blockwise Transformers", arXiv 2310.01889, §3.
**Sent.** Forward: K and V over n−1 hops, (n−1)/n · (S_K + S_V) per rank. Backward: the same again, and the gradients of
K and V over n hops, until they are home: S_K + S_V.
**Cost.** 1/n of the activations, and twice a chunk of K and V. Blocks that a causal mask hides are not computed, but
the last rank computes n blocks and rank 0 only one: `zigzag` divides them evenly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size
from minitrain.context_parallel.online_softmax import add_block, finish, gradients, nothing_yet


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, seq: int, causal: bool = True, group: Group = None
) -> Tensor:
    """[batch, heads, chunk, d] each, of this rank's tokens: `positions(seq, ranks)[rank]`. Any seq from n on."""
    rank, ranks = rank_and_size(group)
    assert seq >= ranks, f"{seq} tokens are too few for {ranks} ranks"
    chunk = len(positions(seq, ranks)[rank])
    assert query.shape[-2] == chunk, f"rank {rank} must hold {chunk} of {seq} tokens"
    assert query.shape == key.shape == value.shape, "fewer key heads: repeat them, or use the full form"
    return RingAttention.apply(query, key, value, seq, causal, group)


def positions(seq: int, ranks: int, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """The positions that each rank holds, **in the whole sequence**; the first chunks may be longer by one."""
    return torch.arange(seq, device=device).tensor_split(ranks)


def pass_on(chunk: Tensor, coming: Tensor, group: Group) -> Any:
    """Start sending to the next rank, and receiving the tokens `coming` from the one before; returns a `Handle`."""
    rank, ranks = rank_and_size(group)
    into = chunk.new_empty(*chunk.shape[:-2], len(coming), chunk.shape[-1])
    return exchange(chunk, (rank + 1) % ranks, into, (rank - 1) % ranks, group)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, seq: int, causal: bool, group: Group) -> Tensor:
        rank, ranks = rank_and_size(group)
        at, running = positions(seq, ranks, query.device), nothing_yet(query)
        kv = torch.stack([key, value])  # [2, batch, heads, chunk, d]
        for step in range(ranks):
            owner = (rank - step) % ranks  # whose keys and values these are
            # Send one step ahead: the next chunk arrives while this one is computed.
            coming = pass_on(kv, at[owner - 1], group) if step < ranks - 1 else None
            # Where the owner comes after this rank, the mask hides all of its keys: nothing to compute.
            if owner <= rank or not causal:
                running = add_block(running, query, kv, at[rank], at[owner], causal)
            kv = coming.wait() if coming else kv
        output, logsum = finish(running)
        ctx.save_for_backward(query, key, value, output, logsum)
        ctx.seq, ctx.causal, ctx.group = seq, causal, group
        return output

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        query, key, value, output, logsum = ctx.saved_tensors
        rank, ranks = rank_and_size(ctx.group)
        at = positions(ctx.seq, ranks, query.device)
        saved = query, output, logsum, grad_o
        grad_q, kv = torch.zeros_like(query), torch.stack([key, value])
        returning: Any = None
        for step in range(ranks):
            owner = (rank - step) % ranks
            # K and V travel a second time, because forward has kept only this rank's.
            coming = pass_on(kv, at[owner - 1], ctx.group) if step < ranks - 1 else None
            grad_kv = torch.zeros_like(kv)
            if owner <= rank or not ctx.causal:
                part, grad_kv = gradients(saved, *kv, at[rank], at[owner], ctx.causal)
                grad_q += part
            # The gradients of K and V follow them: add this rank's part to those that the ranks before have sent.
            grad_kv += returning.wait() if returning else 0
            returning = pass_on(grad_kv, at[owner - 1], ctx.group)
            kv = coming.wait() if coming else kv
        # After n hops each rank has the gradients of its own keys and values.
        return grad_q, *returning.wait(), None, None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
