"""Attention over keys that come block by block: softmax needs the sum over all keys only at the end.

**Idea.** For each query keep m, the largest score xₖ so far, s = Σ exp(xₖ − m), and o = Σ exp(xₖ − m) vₖ. If the next
block raises m to m′, both sums are multiplied by exp(m − m′) before its terms are added. At the end the output is o/s.
Chapter 08's loss merges the same three numbers, except that o is the target's logit there.
**Source.** Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", §3; Rabe & Staats 2021,
"Self-attention Does Not Need O(n²) Memory"; backward: Dao 2023, "FlashAttention-2", §3.1.
**Cost.** seq · block scores at a time. Backward keeps Q, K, V, the output and one number per query, and no scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Running = tuple[Tensor, Tensor, Tensor]  # m, s and o


def attention(query: Tensor, key: Tensor, value: Tensor, block: int, causal: bool = True) -> Tensor:
    """softmax(QKᵀ/√d) V on one rank, for Q, K and V [batch, heads, seq, d], with `block` keys at a time."""
    assert query.shape == key.shape == value.shape, "fewer key heads: repeat them"
    return OnlineSoftmax.apply(query, key, value, block, causal)


def nothing_yet(query: Tensor) -> Running:
    assert query.dtype in (torch.float32, torch.float64), "a sum needs more digits"
    m = query.new_full((*query.shape[:-1], 1), -math.inf)
    return m, torch.zeros_like(m), torch.zeros_like(query)


def scores(query: Tensor, key: Tensor, query_at: Tensor, key_at: Tensor, causal: bool) -> Tensor:
    """QKᵀ/√d; with a causal mask −∞ where the key's position comes after the query's."""
    x = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [batch, heads, queries, keys]
    return x.masked_fill((key_at > query_at[:, None]) & causal, -math.inf)


def add_block(
    running: Running, query: Tensor, kv: Tensor | tuple[Tensor, Tensor], query_at: Tensor, key_at: Tensor, causal: bool
) -> Running:
    """The three numbers of each query, with one block of keys and values added; the last three are of `scores`."""
    (m, s, o), (key, value) = running, kv
    x = scores(query, key, query_at, key_at, causal)
    # A query must see a key of its first block, because −∞ − (−∞) is not a number.
    higher = torch.maximum(m, x.amax(-1, keepdim=True))  # [batch, heads, queries, 1]
    # Sums that were taken with the old maximum become sums with the new one.
    shrink = (m - higher).exp()
    weights = (x - higher).exp()  # at most 1, so they cannot overflow
    return higher, s * shrink + weights.sum(-1, keepdim=True), o * shrink + weights @ value


def finish(running: Running) -> tuple[Tensor, Tensor]:
    """The output, and logsum = log Σ exp(xₖ) for backward."""
    m, s, o = running
    return o / s, m + s.log()


def gradients(saved: tuple[Tensor, ...], key: Tensor, value: Tensor, *where: Any) -> tuple[Tensor, Tensor]:
    """A block's part of the gradient of Q, and the gradients of its K and V, stacked, from these queries."""
    query, output, logsum, grad_o = saved
    # The softmax over *all* keys, P = exp(x − logsum), of this block alone.
    p = (scores(query, key, *where) - logsum).exp()
    grad_p = grad_o @ value.transpose(-2, -1)
    # Softmax backward: dx = P ∘ (dP − Σₖ Pₖ dPₖ). As dPₖ = do · vₖ, the sum over all keys is do · o.
    grad_x = p * (grad_p - (grad_o * output).sum(-1, keepdim=True)) / math.sqrt(query.shape[-1])
    return grad_x @ key, torch.stack([grad_x.transpose(-2, -1) @ query, p.transpose(-2, -1) @ grad_o])


class OnlineSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, block: int, causal: bool) -> Tensor:
        at, running = torch.arange(key.shape[-2], device=key.device), nothing_yet(query)
        for k, v, k_at in zip(key.split(block, -2), value.split(block, -2), at.split(block), strict=True):
            running = add_block(running, query, (k, v), at, k_at, causal)
        output, logsum = finish(running)
        ctx.save_for_backward(query, key, value, output, logsum)
        ctx.block, ctx.causal = block, causal
        return output

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        query, key, value, output, logsum = ctx.saved_tensors
        at, saved = torch.arange(key.shape[-2], device=key.device), (query, output, logsum, grad_o)
        blocks = zip(*(x.split(ctx.block, -2) for x in (key, value)), at.split(ctx.block), strict=True)
        parts = [gradients(saved, k, v, at, k_at, ctx.causal) for k, v, k_at in blocks]
        # Each block adds to the gradient of all queries; those of its keys and values are complete.
        grad_k, grad_v = torch.cat([of_block for _, of_block in parts], dim=-2)
        return torch.stack([to_query for to_query, _ in parts]).sum(0), grad_k, grad_v, None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
