"""Rotary position embedding, with which attention learns of positions by itself."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.models.gpt import Positions


class Rotary(nn.Module):
    """Rotary position embedding: turns pairs of a query's or key's elements by angles that grow with its position.

    At position m, pair i of a head with d elements is turned by the angle m · base^(−2i/d). A turned query times a
    turned key is then a function of the *difference* of their positions alone, because turning both by the same
    angle changes no product. Su et al. 2021, "RoFormer", §3.2.2 and §3.4.2; base is 10,000 there.

    Pair i is elements i and i + d/2, as in GPT-NeoX and Hugging Face's Llama. In the paper it is 2i and 2i + 1, which
    is the same with the columns of the query and key matrices in another order. **Weights of one convention give wrong
    results in the other**, and no error.

    Nothing here is a parameter or buffer: angles are computed when needed, in float32 at least, as bfloat16 has no
    odd number above 256.

    Args:
        base: Larger ones turn more slowly: the slowest pair takes 2π · base^(1 − 2/d) positions to come around.
        factor: As for `stretched`.
    """

    def __init__(self, base: float, factor: float = 1.0):
        super().__init__()
        self.base, self.factor = base, factor
        self.places = Positions()

    def forward(
        self, query: Float[Tensor, "batch heads seq head"], key: Float[Tensor, "batch kv_heads seq head"]
    ) -> tuple[Float[Tensor, "batch heads seq head"], Float[Tensor, "batch kv_heads seq head"]]:
        seq, head = query.shape[-2:]
        dtype = torch.promote_types(query.dtype, torch.float32)
        pairs = torch.arange(head // 2, device=query.device, dtype=dtype)  # [head/2]
        positions = self.places(seq, query.device).to(dtype)  # [seq]
        turns = stretched(self.base ** (-2 * pairs / head), self.factor)  # the angles of position 1, [head/2]
        angles = torch.outer(positions, turns)  # [seq, head/2]
        cos, sin = angles.cos().unsqueeze(1), torch.stack([-angles.sin(), angles.sin()], dim=1)
        return turn(query, cos, sin), turn(key, cos, sin)

    def extra_repr(self) -> str:
        return f"base={self.base:g}" + ("" if self.factor == 1 else f", factor={self.factor:g}")


def stretched(turns: Float[Tensor, " pairs"], factor: float, trained: int = 8192) -> Float[Tensor, " pairs"]:
    """Angles per position for sequences that are `factor` times longer than the `trained` ones, by Llama 3.1's rule.

    A pair that comes around more than four times in the trained length tells near tokens apart, and stays as it is. One
    that does not come around once turns `factor` times more slowly, so that it never has an angle that is new to the
    model. Those in between are mixed. Hugging Face: `rope_type="llama3"`, with frequency factors of 1 and 4.
    """
    if factor == 1:
        return turns
    around = trained * turns / (2 * math.pi)  # how often a pair comes around in the trained length
    kept = ((around - 1) / (4 - 1)).clamp(0, 1)
    return turns * (kept + (1 - kept) / factor)


def turn(
    x: Float[Tensor, "batch heads seq head"], cos: Float[Tensor, "seq 1 pairs"], sin: Float[Tensor, "seq 2 pairs"]
) -> Float[Tensor, "batch heads seq head"]:
    """Turns pairs (a, b) of elements into (a·cos − b·sin, b·cos + a·sin), in the dtype of the angles.

    It leaves the order of elements in memory as it is, so that attention and what follows copy nothing.

    Args:
        x: Queries or keys; element i of a head pairs with i + head/2.
        cos: Of each position and pair.
        sin: The same, first with the sign of the pairs' first elements, −, then with that of the others, +.
    """
    halves = x.to(cos.dtype).unflatten(-1, (2, -1))  # [batch, heads, seq, 2, head/2]
    turned = halves * cos + halves.flip(-2) * sin  # [batch, heads, seq, 2, head/2]
    return turned.flatten(-2).to(x.dtype)  # [batch, heads, seq, head]
