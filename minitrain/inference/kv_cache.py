"""KV cache: a model that writes looks back at keys and values that it has kept, and computes only the new token.

**Idea.** A causal model's keys and values of earlier tokens never change, because no token sees a later one. So they
are computed once and kept. The prompt goes through as a whole (prefill), and then each token by itself (decode), for
a token's work instead of that of the whole text.
**Source.** Shazeer 2019, "Fast Transformer Decoding", §2.4.1; Pope et al. 2022, "Efficiently Scaling Transformer
Inference", §2.
**Sent.** Nothing. Under tensor parallelism each rank keeps the keys and values of its own heads, and sends only what
a forward sends anyway.
**Cost.** 2 · layers · kv_heads · head numbers per token and sequence, for as long as the sequence is written. Decoding
reads all weights for one token per sequence, so it waits for memory unless many sequences are written at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.models.gpt import GPT, Attention, Positions


class KVCache(nn.Module):
    """The core of attention with a memory: keys and values of up to `longest` tokens of each sequence."""

    def __init__(self, batch: int, kv_heads: int, longest: int, head: int, like: Tensor):
        super().__init__()
        self.keys, self.values = like.new_zeros(2, batch, kv_heads, longest, head)
        self.tokens = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query: [batch, heads, new, head] of the new tokens; key, value: [batch, kv_heads, new, head]."""
        start, end = self.tokens, self.tokens + key.shape[2]
        assert end <= self.keys.shape[2], f"the cache is full: {end} tokens, and longest={self.keys.shape[2]}"
        self.keys[:, :, start:end], self.values[:, :, start:end] = key, value
        self.tokens = end
        # The i-th new token stands at position start + i. It sees all keys up to its own.
        sees = torch.ones(end - start, end, dtype=torch.bool, device=query.device).tril(start)
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return F.scaled_dot_product_attention(query, keys, values, sees, enable_gqa=True)


class Onward(Positions):
    """The positions of new tokens, which follow those in the cache."""

    def __init__(self, cache: KVCache):
        super().__init__()
        self.cache = cache

    def forward(self, seq: int, device: torch.device) -> Tensor:
        return torch.arange(self.cache.tokens, self.cache.tokens + seq, device=device)


def add_caches(gpt: GPT, batch: int, longest: int) -> list[KVCache]:
    """Give each block's attention a cache, in place; returns them. The model then continues what it has seen."""
    caches = []
    for attention in (part for part in gpt.modules() if isinstance(part, Attention)):
        # The rows of the weight are this rank's heads: under tensor parallelism some of them.
        weight, head = attention.key.weight.detach(), attention.head_size
        cache = KVCache(batch, len(weight) // head, longest, head, weight)
        attention.core = cache  # type: ignore[bad-assignment]
        if attention.rotary is not None:
            attention.rotary.places = Onward(cache)
        caches.append(cache)
    # The embedding comes first, when the first block's cache does not have the new tokens yet.
    gpt.embedding.places = Onward(caches[0])
    return caches


@torch.no_grad()
def generate(gpt: GPT, tokens: Tensor, count: int) -> Tensor:
    """Continue each sequence with its likeliest tokens. tokens: [batch, seq]; returns [batch, seq + count]."""
    new = tokens
    for _ in range(count):
        # The first round is the prefill, with the whole prompt; in all others one token per sequence is new.
        logits, _ = gpt(new)
        new = logits[:, -1:].argmax(-1)  # [batch, 1]
        tokens = torch.cat([tokens, new], dim=1)
    return tokens


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
