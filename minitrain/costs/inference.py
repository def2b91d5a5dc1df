"""Writing token by token: bytes of the cache, operations of prefill and decode, and which batch a device wants.

L layers of width h, a heads of which k are key and value heads, d = h/a, N parameters, V words, b sequences, s tokens
in the cache, w bytes per number, t tensor-parallel and p pipeline ranks. In latent attention r numbers of a token's
latent (`kv_rank`) and ρ of its rotary key (`rope`), which all heads share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minitrain.costs.roofline import Machine, Work


class Model(NamedTuple):
    """What inference depends on; `parameters` are those in products, without tables of tokens and positions."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    parameters: float
    head_size: int = 0

    @property
    def head(self) -> int:
        """d: h/a, unless heads have a size of their own."""
        return self.head_size or self.hidden // self.heads


def gpt_parameters(layers: int, hidden: int, kv_hidden: int, vocabulary: int) -> int:
    """L (10h² + 2h · kd) + hV: the matrices of a GPT's blocks and its head, without biases."""
    return layers * (10 * hidden**2 + 2 * hidden * kv_hidden) + hidden * vocabulary


def cache_bytes(
    layers: int, kv_heads: int, head: int, tokens: int, batch: int, item: int = 2, tensor: int = 1, pipeline: int = 1
) -> int:
    """2 L k d s b w: keys and values of s tokens (Pope et al. 2022, §2); a rank has ⌈L/p⌉ layers, max(1, k/t) heads."""
    return 2 * -(-layers // pipeline) * max(1, kv_heads // tensor) * head * tokens * batch * item


def latent_cache_bytes(layers: int, kv_rank: int, rope: int, tokens: int, batch: int, item: int = 2) -> int:
    """L (r + ρ) s b w: latents and rotary keys of s tokens, on every tensor-parallel rank (DeepSeek-V2, §2.1.4)."""
    return layers * (kv_rank + rope) * tokens * batch * item


def tokens_that_fit(size: float, layers: int, kv_heads: int, head: int, item: int = 2) -> int:
    """⌊M / 2Lkdw⌋: tokens of all sequences together whose keys and values fit into M bytes."""
    return math.floor(size / cache_bytes(layers, kv_heads, head, 1, 1, item))


def token_flops(parameters: float, layers: int, hidden: int, tokens: float) -> float:
    """2N + 4Lhs: the operations of one new token that sees s (Kaplan et al. 2020, §2.1, for 2N); h is a·d here."""
    return 2 * parameters + 4 * layers * hidden * tokens


def prefill_flops(parameters: float, layers: int, hidden: int, tokens: int) -> float:
    """(2N + 4Lhs) s: of a prompt of s tokens, where attention computes masked scores, too."""
    return tokens * token_flops(parameters, layers, hidden, tokens)


def without_cache_flops(parameters: float, layers: int, hidden: int, prompt: int, count: int) -> float:
    """Σ prefill(s + i) for i < c: each of c tokens takes the whole text again."""
    return sum(prefill_flops(parameters, layers, hidden, prompt + i) for i in range(count))


def with_cache_flops(parameters: float, layers: int, hidden: int, prompt: int, count: int) -> float:
    """Prefill, and then c − 1 single tokens, of which the i-th sees s + i."""
    single = sum(token_flops(parameters, layers, hidden, prompt + i) for i in range(1, count))
    return prefill_flops(parameters, layers, hidden, prompt) + single


# ---- on a device ----


def decode(model: Model, batch: int, tokens: int, item: int = 2) -> Work:
    """One step: b(2N + 4Lhs) operations; all weights are read once, and each sequence's cache (Pope et al. 2022)."""
    flops = batch * token_flops(model.parameters, model.layers, model.heads * model.head, tokens)
    cache = cache_bytes(model.layers, model.kv_heads, model.head, tokens, batch, item)
    return Work(flops, model.parameters * item + cache)


def seconds(work: Work, machine: Machine) -> float:
    """The longer of the two: computing, and reading (`minitrain.costs.roofline`)."""
    return max(work.flops / machine.flops, work.bytes / machine.memory)


def full_batch(machine: Machine, item: int = 2) -> float:
    """w/2 · F/W: the sequences from which on products take as long as reading the weights: b · 2N / F = N w / W."""
    return item / 2 * machine.flops / machine.memory


# ---- over ranks ----


def pipeline_bytes(hidden: int, batch: int, item: int, count: int, prompt: int) -> int:
    """(s + c − 1) b h w: what one stage sends to the next while a prompt of s tokens gets c more."""
    return (prompt + count - 1) * batch * hidden * item


def pipeline_seconds(stage: float, ranks: int, groups: int, count: int) -> float:
    """(c − 1) max(p, g) t + (p + g − 1) t: time to write c tokens for g groups through p stages of t each."""
    return ((count - 1) * max(ranks, groups) + ranks + groups - 1) * stage
