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
Prefill is also called context phase or prompt processing, decode generation phase.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.models.gpt import GPT, Attention, Embedding, Positions


class KVCache(nn.Module):
    """The core of attention with a memory: keys and values of up to `longest` tokens of each sequence."""

    keys: Tensor  # [batch, kv_heads, longest, head]
    values: Tensor  # the same

    def __init__(self, longest: int):
        super().__init__()
        self.longest, self.tokens = longest, 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query: [batch, heads, new, head] of the new tokens; key, value: [batch, kv_heads, new, head]."""
        start, end = self.tokens, self.tokens + key.shape[2]
        assert end <= self.longest, f"the cache is full: {end} tokens, and longest={self.longest}"
        if start == 0:
            # Room for all tokens at once. The first keys have this rank's heads: under tensor parallelism some of them.
            batch, kv_heads, _, head = key.shape
            self.keys, self.values = key.new_zeros(2, batch, kv_heads, self.longest, head)
        self.keys[:, :, start:end], self.values[:, :, start:end] = key, value
        self.tokens = end
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        prompt, sees = start == 0 and end > 1, None
        if start > 0 and end - start > 1:
            # The i-th new token is at position start + i. It sees all keys up to its own.
            sees = torch.ones(end - start, end, dtype=torch.bool, device=query.device).tril(start)
        # A prompt's mask is the usual one, and a single token needs none: a GPU's fast kernels take no other mask.
        return F.scaled_dot_product_attention(query, keys, values, sees, is_causal=prompt, enable_gqa=True)


class Onward(Positions):
    """The positions of new tokens, which follow those in the cache."""

    def __init__(self, cache: KVCache):
        super().__init__()
        self.cache = cache

    def forward(self, seq: int, device: torch.device) -> Tensor:
        return torch.arange(self.cache.tokens, self.cache.tokens + seq, device=device)


def add_caches(model: nn.Module, longest: int) -> list[KVCache]:
    """Give each attention of a GPT, or of some of its layers, a cache, in place. The model then continues a text."""
    caches = []
    for part in [part for part in model.modules() if isinstance(part, Attention)]:
        part.core = cache = KVCache(longest)  # type: ignore[bad-assignment]
        if part.rotary is not None:
            part.rotary.places = Onward(cache)
        caches.append(cache)
    for part in [part for part in model.modules() if isinstance(part, Embedding)]:
        assert longest <= part.longest, f"longest={longest} tokens do not fit positions={part.longest}"
        # The embedding comes first, when the first block's cache does not have the new tokens yet.
        part.places = Onward(caches[0])
    return caches


@torch.no_grad()
def generate(gpt: GPT, tokens: Tensor, count: int) -> Tensor:
    """Continue each sequence with its likeliest tokens. tokens: [batch, seq]; returns [batch, seq + count]."""
    caches = [part for part in gpt.modules() if isinstance(part, KVCache)]
    assert caches, "the model has no caches; call add_caches first"
    for cache in caches:
        # Another text may have been written before.
        cache.tokens = 0
    new, training = tokens, gpt.training
    gpt.eval()  # without dropout
    try:
        for _ in range(count):
            # The first round is the prefill, with the whole prompt; in all others one token per sequence is new.
            logits, _ = gpt(new)
            new = logits[:, -1:].argmax(-1)  # [batch, 1]
            tokens = torch.cat([tokens, new], dim=1)
    finally:
        gpt.train(training)
    return tokens


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
