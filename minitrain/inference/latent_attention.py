"""Latent attention: the cache keeps one short vector per token, from which all heads make their keys and values.

**Idea.** Matrices of low rank turn a token into a short latent c; each head's keys and values are products of c. A
rotation of keys would stand between two matrices, so positions have a rotary key of their own, the same for all heads.
In decoding no key is ever made: qᵀ(Uc) = (Uᵀq)ᵀc, so the query absorbs U, and the output absorbs that of the values.
**Source.** DeepSeek-AI 2024, "DeepSeek-V2", §2.1, equations 9 to 19. Also called MLA, multi-head latent attention.
**Sent.** Heads are cut as in `tensor_parallel.attention`: an all-reduce forward, two backward, of x and of the latent.
**Cost.** kv_rank + rope numbers per token and layer, on **every** rank. Absorbed scores are products of that length.
Left out: queries of low rank, which save activations in training; norms; a cache with room for all tokens at once.
`kv_lora_rank`, `qk_nope_head_dim`, `qk_rope_head_dim` (DeepSeek) are `kv_rank`, `head`, `rope` here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def rotate(x: Tensor, start: int) -> Tensor:
    """RoPE: turn pairs of numbers by angles that grow with the position. x: [..., seq, rope], the first at `start`."""
    seq, half, dtype = x.shape[-2], x.shape[-1] // 2, torch.promote_types(x.dtype, torch.float32)
    speed = 10_000 ** (-torch.arange(half, device=x.device, dtype=dtype) / half)  # [rope/2]
    # In float32 at least: bfloat16 has no odd number above 256, so neighbors would be at one position.
    angle = torch.arange(start, start + seq, device=x.device)[:, None] * speed  # [seq, rope/2]
    a, b = x.to(dtype).chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).to(x.dtype)


class LatentAttention(nn.Module):
    """This rank's heads; x, the output and the latents are the same on all ranks."""

    def __init__(self, hidden: int, heads: int, head: int, kv_rank: int, rope: int, group: Group = None):
        super().__init__()
        rank, ranks = rank_and_size(group)
        assert heads % ranks == 0 and rope % 2 == 0, "all ranks have as many heads, and rope is of pairs"
        self.group, self.kv_rank, self.head, self.rope = group, kv_rank, head, rope

        # On every rank: a latent belongs to no head, so there is nothing to cut it by. W_DKV is above W_KR.
        self.down = nn.Parameter(torch.randn(kv_rank + rope, hidden) / hidden**0.5)

        def own(*shape: int) -> nn.Parameter:
            # All ranks draw the matrices of all heads: with the same seed, they are those of one device.
            return nn.Parameter((torch.randn(heads, *shape) / shape[-1] ** 0.5).chunk(ranks)[rank].clone())

        self.query = own(head + rope, hidden)  # W_Q and W_QR, [heads/n, head + rope, hidden]
        self.key, self.value = own(head, kv_rank), own(head, kv_rank)  # W_UK and W_UV, [heads/n, head, kv_rank]
        self.output = own(hidden, head)  # W_O, [heads/n, hidden, head]

    def forward(self, x: Tensor, cache: Tensor | None = None, absorb: bool = False) -> tuple[Tensor, Tensor]:
        """x: [batch, new, hidden], tokens after those of the cache; returns the output, and the cache with them."""
        sizes, scale = [self.kv_rank, self.rope], (self.head + self.rope) ** -0.5
        start = 0 if cache is None else cache.shape[1]
        c, rotary = F.linear(x, self.down).split(sizes, -1)
        # All that is ever kept. The rotary part is turned before, since a token's position never changes.
        latent = torch.cat([c, rotate(rotary, start)], -1)  # [batch, new, kv_rank + rope]
        latent = latent if cache is None else torch.cat([cache, latent], 1)  # [batch, seq, kv_rank + rope]
        # f, twice: backward adds up all heads' gradients of x and of the latent, so `down` has its whole gradient.
        shared = copy_to_parallel(latent, self.group)[:, None]  # [batch, 1, seq, kv_rank + rope]
        c, rotary = shared.split(sizes, -1)
        x = copy_to_parallel(x, self.group)[:, None]  # [batch, 1, new, hidden]
        q, q_rotary = (x @ self.query.mT).split([self.head, self.rope], -1)  # [batch, heads/n, new, …]
        if absorb:
            # One key for all heads, the latent itself, and one value, its first part: multi-query attention.
            q, key, value = q @ self.key, shared, c  # q: [batch, heads/n, new, kv_rank]
        else:
            key = c @ self.key.mT  # [batch, heads/n, seq, head]
            key = torch.cat([key, rotary.expand(*key.shape[:-1], -1)], -1)  # [batch, heads/n, seq, head + rope]
            value = c @ self.value.mT  # [batch, heads/n, seq, head]
        scores = torch.cat([q, rotate(q_rotary, start)], -1) @ key.mT * scale  # [batch, heads/n, new, seq]
        # The i-th new token is at position start + i, and sees all tokens up to its own.
        future = torch.ones_like(scores, dtype=torch.bool).triu(start + 1)
        y = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        if absorb:
            # A mean of latents becomes the mean of this head's values.
            y = y @ self.value.mT  # [batch, heads/n, new, head]
        # g all-reduces: each rank's heads give a partial sum of the output.
        y = (y @ self.output.mT).sum(1)  # [batch, new, hidden]
        return reduce_from_parallel(y, self.group), latent


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
