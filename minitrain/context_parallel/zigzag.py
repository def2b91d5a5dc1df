"""Zigzag ring attention: under a causal mask all ranks have equal work, because each holds an early and a late chunk.

**Idea.** The later a token is, the more keys it sees. So the sequence is cut into 2n chunks, and rank r holds chunks r
and 2n−1−r: together they see 2n+1 chunks of keys, whichever r is. A chunk of keys that is later than a chunk of queries
is hidden from it, and not computed. All else is `ring_attention`.
**Source.** Zhu 2024, `zigzag_ring_flash_attn` of zhuzilin/ring-flash-attention; Grattafiori et al. 2024, "The Llama 3
Herd of Models", §3.3.2, for the 2n chunks. Brandon et al. 2023, "Striped Attention", §2, deals single tokens.
**Sent.** As in ring attention: hidden chunks travel, too.
**Cost.** Causal attention takes the same time on all ranks; contiguous chunks take (2n−1)/n times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size
from minitrain.context_parallel.online_softmax import add_block, finish, gradients, nothing_yet


def zigzag_attention(query: Tensor, key: Tensor, value: Tensor, seq: int, group: Group = None) -> Tensor:
    """[batch, heads, tokens, d] each, of this rank's tokens: `torch.cat(held(seq, ranks)[rank])`. Causal; seq ≥ 2n."""
    rank, ranks = rank_and_size(group)
    assert seq >= 2 * ranks, f"{seq} tokens are too few for two chunks on each of {ranks} ranks"
    tokens = sum(map(len, held(seq, ranks)[rank]))
    # With fewer key heads than query heads repeat them, or use the full form.
    assert query.shape == key.shape == value.shape and query.shape[-2] == tokens, f"must hold {tokens} of {seq} tokens"
    return Zigzag.apply(query, key, value, seq, group)


def held(seq: int, ranks: int, device: torch.device | None = None) -> list[tuple[Tensor, Tensor]]:
    """The positions of each rank's early and late chunk; the first of all 2n chunks may be longer by one."""
    chunks = torch.arange(seq, device=device).tensor_split(2 * ranks)
    return [(chunks[rank], chunks[2 * ranks - 1 - rank]) for rank in range(ranks)]


def visible(rank: int, owner: int) -> list[tuple[int, int]]:
    """Which of a rank's two chunks of queries see which of the owner's two chunks of keys: early is 0, late is 1."""
    # Late queries see every early chunk. Early ones see the owner's early chunk if it is not after them, and late
    # ones its late chunk if it is not after them; early queries see no late keys.
    return [(1, 0)] + [(0, 0)] * (owner <= rank) + [(1, 1)] * (owner >= rank)


def cut(x: Tensor, chunks: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return x.split([len(chunk) for chunk in chunks], dim=-2)


def pass_on(x: Tensor, coming: tuple[Tensor, Tensor], group: Group) -> Any:
    """As in ring attention."""
    rank, ranks = rank_and_size(group)
    into = x.new_empty(*x.shape[:-2], sum(map(len, coming)), x.shape[-1])
    return exchange(x, (rank + 1) % ranks, into, (rank - 1) % ranks, group)


class Zigzag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, seq: int, group: Group) -> Tensor:
        rank, ranks = rank_and_size(group)
        at, kv = held(seq, ranks, query.device), torch.stack([key, value])
        queries = cut(query, at[rank])
        running = [nothing_yet(each) for each in queries]
        for step in range(ranks):
            owner = (rank - step) % ranks
            # Send one step ahead.
            coming = pass_on(kv, at[owner - 1], group) if step < ranks - 1 else None
            for q, k in visible(rank, owner):
                running[q] = add_block(running[q], queries[q], cut(kv, at[owner])[k], at[rank][q], at[owner][k], True)
            kv = coming.wait() if coming else kv
        output, logsum = (torch.cat(both, -2) for both in zip(*map(finish, running), strict=True))
        ctx.save_for_backward(query, key, value, output, logsum)
        ctx.seq, ctx.group = seq, group
        return output

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        query, key, value, output, logsum = ctx.saved_tensors
        rank, ranks = rank_and_size(ctx.group)
        at, kv = held(ctx.seq, ranks, query.device), torch.stack([key, value])
        returning: Any = None
        # What `gradients` needs of the early and the late queries.
        saved = list(zip(*(cut(x, at[rank]) for x in (query, output, logsum, grad_o)), strict=True))
        grad_q = torch.zeros_like(query)
        for step in range(ranks):
            owner = (rank - step) % ranks
            coming = pass_on(kv, at[owner - 1], ctx.group) if step < ranks - 1 else None
            grad_kv = torch.zeros_like(kv)
            for q, k in visible(rank, owner):
                part, of_block = gradients(saved[q], *cut(kv, at[owner])[k], at[rank][q], at[owner][k], True)
                # Views: this adds into the slices of the early and the late chunk.
                cut(grad_q, at[rank])[q].add_(part)
                cut(grad_kv, at[owner])[k].add_(of_block)
            # The gradients of K and V follow them, and after n hops they are home.
            grad_kv += returning.wait() if returning else 0
            returning = pass_on(grad_kv, at[owner - 1], ctx.group)
            kv = coming.wait() if coming else kv
        return grad_q, *returning.wait(), None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
