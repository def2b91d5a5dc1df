"""The sizes and choices of a GPT, each checked when it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from minitrain.models.norm import RMSNorm
    from minitrain.models.rotary import Rotary

AttentionKind = Literal["sdpa", "plain"]
PositionKind = Literal["learned", "rope"]
NormKind = Literal["layer", "rms"]
MLPKind = Literal["gelu", "swiglu"]
Biases = Literal["all", "qkv", "none"]


@dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices of a `GPT`. The defaults make a model that two cores train in about a minute.

    Attributes:
        vocabulary: Number of different tokens; 256 for bytes.
        positions: The longest sequence the model can take. With "rope" no weight depends on it: the same weights
            work in a model of more positions, as well as training on long sequences has taught them to.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads, each shared by `heads / kv_heads` query heads (grouped-query attention,
            Ainslie et al. 2023). None: as many as `heads`.
        dropout: Probability of dropping an element: after the embedding, on attention weights, and before
            each residual addition.
        tied: The head uses the weight of the token embedding (Press & Wolf 2017).
        attention: "sdpa" calls torch's fused kernel; "plain" writes the scores out, for lessons that look
            inside.
        positions_kind: "learned" adds a row of a table to each token, as in GPT-2; "rope" has no table, and rotates
            queries and keys instead (`Rotary`).
        rope_base: Of the rotary embedding, θ's base; a larger one turns more slowly, for longer sequences.
        rope_factor: Of the rotary embedding: its slow pairs turn this many times more slowly (`stretched`).
        head_size: Width of a head; None: `hidden / heads`.
        norm: "layer" subtracts the mean, and has a bias; "rms" does neither (`RMSNorm`).
        norm_eps: What a norm adds before it takes the root.
        mlp: "gelu" has two matrices; "swiglu" has a third, whose product gates the first's (Shazeer 2020).
        mlp_hidden: Width inside the MLP; None: `4 · hidden`.
        biases: Which linear layers of a block have one: all, only query, key and value ("qkv", as in Qwen2), none.
        qk_norm: Each head's queries and keys have an RMSNorm before they are rotated (as in Qwen3).

    Raises:
        ValueError: If a value cannot work; names the argument, the value and what would do.
    """

    vocabulary: int = 256
    positions: int = 128
    layers: int = 4
    hidden: int = 128
    heads: int = 4
    kv_heads: int | None = None
    dropout: float = 0.0
    tied: bool = True
    attention: AttentionKind = "sdpa"
    positions_kind: PositionKind = "learned"
    rope_base: float = 10000.0
    rope_factor: float = 1.0
    head_size: int | None = None
    norm: NormKind = "layer"
    norm_eps: float = 1e-5
    mlp: MLPKind = "gelu"
    mlp_hidden: int | None = None
    biases: Biases = "all"
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("vocabulary", "positions", "layers", "hidden", "heads", "head_size", "mlp_hidden"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name}={size} must be at least 1")
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} cannot be split over heads={self.heads}; "
                f"use a multiple of {self.heads} for hidden"
            )
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            fitting = [count for count in range(1, self.heads + 1) if self.heads % count == 0]
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}; use one of {fitting}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        kinds = {"attention": AttentionKind, "positions_kind": PositionKind}
        for name, kind in (kinds | {"norm": NormKind, "mlp": MLPKind, "biases": Biases}).items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; use one of {get_args(kind)}")
        if not 1 < self.rope_base < math.inf:
            raise ValueError(f"rope_base={self.rope_base} must be above 1 and finite; 10000 is usual")
        if not 1 <= self.rope_factor < math.inf:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1 and finite; Llama 3.1 has 8")
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"norm_eps={self.norm_eps} must be above 0 and finite; 1e-5 is usual")
        if self.positions_kind == "rope" and self.head % 2:
            made = "" if self.head_size else f"hidden={self.hidden} over heads={self.heads} makes "
            use = "an even head_size" if self.head_size else f"a multiple of {2 * self.heads} for hidden"
            raise ValueError(f"{made}heads of {self.head}, which rope cannot divide into pairs; use {use}")

    def rotary(self) -> Rotary | None:
        """Of a block's attention; None where positions are learned."""
        from minitrain.models.rotary import Rotary  # here, since it needs torch

        return Rotary(self.rope_base, self.rope_factor) if self.positions_kind == "rope" else None

    @property
    def gated(self) -> Callable[[Tensor, Tensor], Tensor]:
        """How a gated MLP's hidden units are made of what its two first layers give: gate, up."""
        from minitrain.models.gate import gated  # here, since it needs torch

        return gated

    def make_norm(self) -> nn.Module:
        """Of a token."""
        from torch import nn

        from minitrain.models.norm import RMSNorm  # here, since it needs torch

        return (RMSNorm if self.norm == "rms" else nn.LayerNorm)(self.hidden, self.norm_eps)

    def head_norm(self) -> RMSNorm | None:
        """Of each head's queries, or keys; None without `qk_norm`."""
        from minitrain.models.norm import RMSNorm

        return RMSNorm(self.head, self.norm_eps) if self.qk_norm else None

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden // self.heads
