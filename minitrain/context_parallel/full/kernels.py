"""Attention of some queries to some keys, with the logarithm of the softmax's denominator, so that parts can be merged.

A block's output is softmax(QKᵀ/√d) V over the block's keys alone. Together with logsum = log Σ exp(score) two blocks
can be merged into what both sets of keys give, whatever their order:

    output = σ(logsum₂ − logsum₁) · output₂ + (1 − σ(logsum₂ − logsum₁)) · output₁,  σ(x) = 1 / (1 + e^−x)

Backward needs no merging: given the logsum *over all keys*, a weight is exp(score − logsum) again, and each block's
gradients are sums over its own weights (Dao 2023, "FlashAttention-2", §3.1).

Fused kernels return logsum and take it in backward: torch's for CPUs, FlashAttention on GPUs in 16 bits. Otherwise
(dropout, documents, other dtypes on GPUs) the scores of a block are written out, in float32 at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minitrain.models import counter_rng

HALVES = (torch.bfloat16, torch.float16)
FUSED_ON_CPU = (torch.float32, torch.float64, *HALVES)


@dataclass(frozen=True)
class Tokens:
    """True positions of the queries and keys of one block: written-out scores need them."""

    queries: Int[Tensor, " q"]
    keys: Int[Tensor, " k"]


@dataclass(frozen=True)
class Dropout:
    """Dropout on attention weights by position, the masks of `tensor_parallel.dropout_rng.AttentionDropout`."""

    p: float  # probability of dropping a weight
    words: str  # the numbers' key: of seed and step, and the site
    first_token: int  # of the micro-batch
    seq: int  # length of the whole sequence
    first_head: int  # of the heads at hand, in the whole model

    def dropped(self, weights: Float[Tensor, "batch heads q k"], tokens: Tokens) -> Bool[Tensor, "batch heads q k"]:
        """Which weights are dropped; the others are divided by 1 − p."""
        (batch, heads), device = weights.shape[:2], weights.device
        sequences = torch.arange(batch, device=device).view(-1, 1, 1, 1)
        # By true numbers of token, head and key, so that every layout drops the same weights.
        queries = self.first_token + sequences * self.seq + tokens.queries.view(-1, 1)  # [batch, 1, q, 1]
        numbers = torch.arange(self.first_head, self.first_head + heads, device=device).view(-1, 1, 1)
        return counter_rng.bits(self.words, queries, numbers * self.seq + tokens.keys) < self.p * 2**32


@dataclass(frozen=True)
class Rule:
    """What applies to all blocks of one call."""

    causal: bool  # whether a query sees no later keys
    documents: Int[Tensor, "batch seq"] | None = None  # of each token; a query then sees only keys of its own
    dropout: Dropout | None = None

    def hidden(self, tokens: Tokens) -> Bool[Tensor, "_ 1 q k"]:
        """Which keys a query does not see; the first dim is 1 where that is the same in all sequences."""
        later = tokens.keys > tokens.queries[:, None]  # [q, k]
        hidden = (later if self.causal else torch.zeros_like(later))[None, None]
        if self.documents is not None:
            of_queries, of_keys = self.documents[:, tokens.queries], self.documents[:, tokens.keys]
            hidden = hidden | (of_queries[:, None, :, None] != of_keys[:, None, None, :])
        return hidden


def attend(
    query: Float[Tensor, "batch heads q head"],
    key: Float[Tensor, "batch kv_heads k head"],
    value: Float[Tensor, "batch kv_heads k head"],
    causal: bool,
    tokens: Tokens,
    rule: Rule,
) -> tuple[Float[Tensor, "batch heads q head"], Float[Tensor, "batch heads q"]]:
    """One block: its output, and its logsum in float32 at least.

    `causal` means that queries and keys are the same tokens, under a causal mask. Otherwise each query sees all of
    these keys, but for what `rule.documents` hides. Each key head is shared by heads / kv_heads query heads.
    """
    key, value = repeat(key, query), repeat(value, query)
    if not fused(query, rule):
        return written_out(query, key, value, tokens, rule)
    # Not `F.scaled_dot_product_attention`, which keeps the logsum to itself.
    if query.is_cuda:
        output, logsum, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return output, logsum
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)


def gradients(
    gradient: Float[Tensor, "batch heads q head"],
    query: Float[Tensor, "batch heads q head"],
    key: Float[Tensor, "batch kv_heads k head"],
    value: Float[Tensor, "batch kv_heads k head"],
    output: Float[Tensor, "batch heads q head"],
    logsum: Float[Tensor, "batch heads q"],
    causal: bool,
    tokens: Tokens,
    rule: Rule,
) -> tuple[
    Float[Tensor, "batch heads q head"], Float[Tensor, "batch kv_heads k head"], Float[Tensor, "batch kv_heads k head"]
]:
    """This block's parts of the gradients of query, key and value, given `output` and `logsum` over **all** keys.

    Those of key and value are summed over the query heads that share them, in float32 at least.
    """
    kv_heads = key.shape[1]
    key, value = repeat(key, query), repeat(value, query)
    if not fused(query, rule):
        parts = written_out_gradients(gradient, query, key, value, output, logsum, tokens, rule)
    elif query.is_cuda:
        parts = _flash_gradients(gradient, query, key, value, output, logsum, causal)
    else:
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        parts = backward(gradient, query, key, value, output, logsum, 0.0, causal)
    to_query, to_key, to_value = parts
    return to_query, shared(to_key, kv_heads), shared(to_value, kv_heads)


def _flash_gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsum: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """FlashAttention's backward on GPUs. Lengths and random numbers concern ragged batches and dropout, of which there
    are none."""
    unused = torch.empty(0, dtype=torch.int64, device=query.device)
    lengths = query.shape[2], key.shape[2]
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        gradient, query, key, value, output, logsum.contiguous(), None, None, *lengths, 0.0, causal, unused, unused
    )


def fused(query: Float[Tensor, "batch heads q head"], rule: Rule) -> bool:
    """Whether a kernel does this without writing the scores out. Kernels would draw masks of their own for dropout."""
    if rule.dropout is not None or rule.documents is not None:
        return False
    if query.is_cuda:
        # What FlashAttention takes.
        return query.dtype in HALVES and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return query.device.type == "cpu" and query.dtype in FUSED_ON_CPU


def repeat(key: Tensor, query: Tensor) -> Tensor:
    """Each key head once for every query head that shares it, `[batch, heads, k, head]`."""
    sharing = query.shape[1] // key.shape[1]
    return key.repeat_interleave(sharing, dim=1) if sharing > 1 else key


def shared(gradient: Tensor, kv_heads: int) -> Tensor:
    """The sum over the query heads that share a key head, in float32 at least."""
    # Wider before the sum, and it stays so, as other blocks' parts will be added.
    wide = gradient.to(wider(gradient.dtype))
    return wide.unflatten(1, (kv_heads, -1)).sum(2) if kv_heads < gradient.shape[1] else wide


def wider(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float32, or float64 as it is."""
    return torch.promote_types(dtype, torch.float32)


def _scores(query: Tensor, key: Tensor, tokens: Tokens, rule: Rule) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [batch, heads, q, k]
    return scores.masked_fill_(rule.hidden(tokens), -math.inf)


def written_out(query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, rule: Rule) -> tuple[Tensor, Tensor]:
    """`attend` with the block's scores as a tensor."""
    dtype = query.dtype
    query, key, value = (each.to(wider(dtype)) for each in (query, key, value))
    # From here on in place: nothing else is as large as the scores.
    scores = _scores(query, key, tokens, rule)
    logsum = scores.logsumexp(-1)  # [batch, heads, q]
    # A query that sees none of these keys has logsum −∞ here, and weights of 0.
    weights = scores.sub_(logsum.masked_fill(logsum.isinf(), 0)[..., None]).exp_()
    if rule.dropout is not None:
        # After the softmax: what is dropped still counts in the denominator.
        dropped = rule.dropout.dropped(weights, tokens)
        weights = weights.masked_fill_(dropped, 0.0).div_(1 - rule.dropout.p)
    return (weights @ value).to(dtype), logsum


def written_out_gradients(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsum: Tensor,
    tokens: Tokens,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    """`gradients` with the block's scores as a tensor."""
    wide = wider(query.dtype)
    gradient, query, key, value, output = (each.to(wide) for each in (gradient, query, key, value, output))
    # This logsum is over all keys, therefore finite, and a hidden key gets weight 0.
    weights = (_scores(query, key, tokens, rule) - logsum[..., None]).exp_()  # [batch, heads, q, k]
    to_weights = gradient @ value.transpose(-2, -1)  # [batch, heads, q, k]
    used = weights
    if rule.dropout is not None:
        dropped, kept = rule.dropout.dropped(weights, tokens), 1 - rule.dropout.p
        used, to_weights = (each.masked_fill(dropped, 0.0).div_(kept) for each in (weights, to_weights))
    # Softmax: Σ weight · gradient of weight, over all keys, is gradient · output, also with dropout.
    dot = (gradient * output).sum(-1, keepdim=True)
    to_scores = weights * (to_weights - dot) / math.sqrt(query.shape[-1])
    return to_scores @ key, to_scores.transpose(-2, -1) @ query, used.transpose(-2, -1) @ gradient
