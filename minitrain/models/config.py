"""The sizes and choices of a GPT, each checked when it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from minitrain.models.rotary import Rotary

AttentionKind = Literal["sdpa", "plain"]
PositionKind = Literal["learned", "rope"]


@dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices of a `GPT`. The defaults make a model that two cores train in about a minute.

    Attributes:
        vocabulary: Number of different tokens; 256 for bytes.
        positions: The longest sequence the model can take. With "rope" no weight depends on it: the same weights
            work in a model of more positions, as well as training on long sequences has taught them to.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        heads: Query heads; each is `hidden / heads` wide.
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

    def __post_init__(self) -> None:
        for name in ("vocabulary", "positions", "layers", "hidden", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} cannot be split over heads={self.heads}; "
                f"use a multiple of {self.heads} for hidden"
            )
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            fitting = [count for count in range(1, self.heads + 1) if self.heads % count == 0]
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}; use one of {fitting}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        if self.attention not in get_args(AttentionKind):
            raise ValueError(f"attention={self.attention!r} is unknown; use one of {get_args(AttentionKind)}")
        if self.positions_kind not in get_args(PositionKind):
            raise ValueError(f"positions_kind={self.positions_kind!r} is unknown; use one of {get_args(PositionKind)}")
        if not 1 < self.rope_base < math.inf:
            raise ValueError(f"rope_base={self.rope_base} must be above 1 and finite; 10000 is usual")
        if self.positions_kind == "rope" and self.head_size % 2:
            raise ValueError(
                f"hidden={self.hidden} over heads={self.heads} makes heads of {self.head_size}, which rope cannot "
                f"divide into pairs; use a multiple of {2 * self.heads} for hidden"
            )

    def rotary(self) -> Rotary | None:
        """Of a block's attention; None where positions are learned."""
        from minitrain.models.rotary import Rotary  # here, since it needs torch

        return Rotary(self.rope_base) if self.positions_kind == "rope" else None

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads
