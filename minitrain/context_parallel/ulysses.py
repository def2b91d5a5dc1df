"""Ulysses: two changes of cut, from the sequence to the heads before attention, and back after it.

**Idea.** Attention mixes tokens but never heads. Outside attention each rank has all heads of its own tokens. An
all-to-all gives it all tokens of its own heads, so that any attention core works there unchanged, with any mask.
Another all-to-all takes the output back.
**Source.** Jacobs et al. 2023, "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence
Transformer Models", §3.1 and 3.2.
**Sent.** Four all-to-alls forward, of Q, K, V and the output, and four of their gradients backward. In each, a rank
sends (n−1)/n² of the bytes of the whole tensor.
**Cost.** At most as many ranks as heads. Where ranks do not divide the key heads, these are repeated before they are
sent. Nothing is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm.messages import Group, rank_and_size

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
HEADS, SEQ = 1, 2  # dims of [batch, heads, seq, head]
causal: Core = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)


def attention(q: Tensor, k: Tensor, v: Tensor, core: Core = causal, group: Group = None) -> Tensor:
    """Attention of this rank's tokens, [batch, heads, seq/n, head], to all; K and V may have fewer heads than Q."""
    _, ranks = rank_and_size(group)
    heads, key_heads = q.shape[HEADS], k.shape[HEADS]
    assert heads % ranks == 0, (
        f"{heads} heads cannot be divided over {ranks} ranks; "
        f"use a number of ranks that divides {heads}, or attention of all_gather"
    )
    assert heads % key_heads == 0, f"{key_heads} key heads do not divide {heads} heads"

    # Every rank needs as many key heads, and those of its own query heads. So each is repeated
    # until the ranks divide them; autograd adds up the gradients of the copies.
    times = ranks // gcd(key_heads, ranks)
    k, v = (x.repeat_interleave(times, HEADS) for x in (k, v))

    # There: heads leave, tokens arrive. The sequence is whole, in its true order.
    q, k, v = (AllToAll.apply(x, HEADS, SEQ, group) for x in (q, k, v))  # [batch, heads/n, seq, head]
    output = core(q, k, v)  # [batch, heads/n, seq, head]
    # Back: tokens leave, heads arrive.
    return AllToAll.apply(output, SEQ, HEADS, group)  # [batch, heads, seq/n, head]


class AllToAll(torch.autograd.Function):
    """Cut x into n parts along one dim, send part r to rank r, and join the parts that arrive along another dim."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, join: int, group: Group) -> Tensor:
        # Gradients take the opposite way: cut where the parts were joined, joined where x was cut.
        ctx.back = join, cut, group
        _, ranks = rank_and_size(group)
        outgoing = torch.stack(x.chunk(ranks, cut))  # n parts, one for each rank
        incoming = torch.empty_like(outgoing)  # n parts, one from each rank
        # One message to each other rank; this rank's own part is copied.
        pairwise(incoming, outgoing, [1] * ranks, [1] * ranks, group)
        # Parts are in the order of ranks, which is that of the tokens and of the heads.
        return torch.cat(tuple(incoming), join)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return AllToAll.apply(gradients[0], *ctx.back), None, None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
