"""A GPT-2 style language model for one device: the reference that every chapter is compared with.

Tokens and positions are embedded and added. Each block adds attention, then a two-layer MLP, to the residual
stream, each after a LayerNorm (pre-norm). A last LayerNorm and a linear head give the logits of the next
token. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3. One choice is newer:
with rotary position embedding, attention learns of positions by itself, and there is no table of them.

The parts are small modules with one tensor in and one out, so that a chapter can replace one and leave the
rest: tensor parallelism replaces `nn.Linear` and `nn.Embedding`, recomputation wraps a `Block` or its
`attention.core`, a mixture of experts replaces an `mlp`, a pipeline takes `embedding`, `blocks`, `norm` and
`head` apart.

Shapes: `[batch, seq, hidden]`; inside attention `[batch, heads, seq, head]` with `hidden = heads · head`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

IGNORE = -100
"""Targets of this value take no part in the loss (torch's own default `ignore_index`)."""

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

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


class Positions(nn.Module):
    """The true positions of the tokens at hand, each in its own sequence: 0, 1, 2, ….

    A module of its own, so that it can be replaced where a rank holds another part of each sequence than the
    beginning (context parallelism). Nothing else in the model counts tokens.
    """

    def forward(self, seq: int, device: torch.device) -> Int[Tensor, " seq"]:
        return torch.arange(seq, device=device)


class Embedding(nn.Module):
    """Token embedding, plus position embedding if that is learned, then dropout.

    Attributes:
        positions: The table of learned positions; None with rotary ones, which attention applies.
        places: The positions of the tokens.
        longest: The longest sequence.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        learned = config.positions_kind == "learned"
        self.positions = nn.Embedding(config.positions, config.hidden) if learned else None
        self.places = Positions()
        self.longest = config.positions
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq hidden"]:
        seq = tokens.shape[1]
        if seq > self.longest:
            raise ValueError(f"tokens of length {seq} do not fit positions={self.longest}; use at most {self.longest}")
        x = self.tokens(tokens)  # [batch, seq, hidden]
        if self.positions is not None:
            x = x + self.positions(self.places(seq, tokens.device))  # [batch, seq, hidden]
        return self.dropout(x)


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
        base: Larger ones turn more slowly: the slowest pair takes nearly 2π · base positions to come around.
    """

    def __init__(self, base: float):
        super().__init__()
        self.base = base
        self.places = Positions()

    def forward(
        self, query: Float[Tensor, "batch heads seq head"], key: Float[Tensor, "batch kv_heads seq head"]
    ) -> tuple[Float[Tensor, "batch heads seq head"], Float[Tensor, "batch kv_heads seq head"]]:
        seq, head = query.shape[-2:]
        dtype = torch.promote_types(query.dtype, torch.float32)
        pairs = torch.arange(head // 2, device=query.device, dtype=dtype)  # [head/2]
        positions = self.places(seq, query.device).to(dtype)  # [seq]
        angles = torch.outer(positions, self.base ** (-2 * pairs / head))  # [seq, head/2]
        cos, sin = angles.cos().unsqueeze(1), torch.stack([-angles.sin(), angles.sin()], dim=1)
        return turn(query, cos, sin), turn(key, cos, sin)

    def extra_repr(self) -> str:
        return f"base={self.base:g}"


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


class CausalAttention(nn.Module):
    """The core of attention, softmax(QKᵀ/√d + mask) V: no parameters, each head by itself.

    Vaswani et al. 2017, §3.2.1. The mask is −∞ above the diagonal: a position sees itself and earlier ones.

    Args:
        kind: "sdpa" or "plain", equal in result. Only "plain" keeps scores, `seq × seq`, as tensors.
        dropout: Probability of dropping an attention weight.
    """

    def __init__(self, kind: AttentionKind = "sdpa", dropout: float = 0.0):
        super().__init__()
        self.kind = kind
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Float[Tensor, "batch heads seq head"],
        key: Float[Tensor, "batch kv_heads seq head"],
        value: Float[Tensor, "batch kv_heads seq head"],
    ) -> Float[Tensor, "batch heads seq head"]:
        sharing = query.shape[1] // key.shape[1]
        if sharing > 1:
            key = key.repeat_interleave(sharing, dim=1)  # [batch, heads, seq, head]
            value = value.repeat_interleave(sharing, dim=1)  # [batch, heads, seq, head]
        if self.kind == "sdpa":
            dropout = self.dropout.p if self.training else 0.0
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)

        seq, head = query.shape[-2:]
        later = torch.ones(seq, seq, dtype=torch.bool, device=query.device).triu(diagonal=1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(head)  # [batch, heads, seq, seq]
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        return self.dropout(weights) @ value  # [batch, heads, seq, head]


class Attention(nn.Module):
    """Multi-head causal self-attention with separate query, key and value projections.

    The number of heads is read off the projections' outputs. So where a projection is replaced by one that
    makes only some of the heads (tensor parallelism), the rest of this module works unchanged.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_size = config.head_size
        kv_hidden = (config.kv_heads or config.heads) * config.head_size
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, kv_hidden)
        self.value = nn.Linear(config.hidden, kv_hidden)
        self.rotary = Rotary(config.rope_base) if config.positions_kind == "rope" else None
        self.core = CausalAttention(config.attention, config.dropout)
        self.output = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch _ hidden"]:
        return self.mix(self.query(x), self.key(x), self.value(x))

    def mix(
        self,
        query: Float[Tensor, "batch seq width"],
        key: Float[Tensor, "batch seq kv_width"],
        value: Float[Tensor, "batch seq kv_width"],
    ) -> Float[Tensor, "batch _ hidden"]:
        """What comes after the first three projections: the heads by themselves, then the output projection.

        That may give all tokens, or (sequence parallelism) those of a rank.
        """
        query = self.split_heads(query)  # [batch, heads, seq, head]
        key = self.split_heads(key)  # [batch, kv_heads, seq, head]
        value = self.split_heads(value)  # [batch, kv_heads, seq, head]
        if self.rotary is not None:
            query, key = self.rotary(query, key)  # same shapes; values have no position
        mixed = self.core(query, key, value)  # [batch, heads, seq, head]
        return self.output(mixed.transpose(1, 2).flatten(2))  # [batch, seq, hidden]

    def split_heads(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch heads seq head"]:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class MLP(nn.Module):
    """Two linear layers, four times as wide in between, with GPT-2's tanh approximation of GELU."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch _ hidden"]:
        wide = F.gelu(self.up(x), approximate="tanh")  # [batch, seq, 4·hidden]
        return self.down(wide)  # [batch, seq, hidden]


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

    Norms and residual dropout are here and not in `Attention` and `MLP`: tensor parallelism splits what is
    inside those two, sequence parallelism what is between them.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.attention_dropout = nn.Dropout(config.dropout)
        self.mlp_norm = nn.LayerNorm(config.hidden)
        self.mlp = MLP(config)
        self.mlp_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        x = x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))
        return x


class NextTokenLoss(nn.Module):
    """Cross-entropy in nats, averaged over the targets that are not `IGNORE` (not a number if all are).

    Computed in float32 at least: bfloat16 has 8 bits of mantissa, too few for a logarithm of a sum.

    Attributes:
        kept: Where it is a list, the losses of single tokens, [batch, seq], are added to it in each call.
    """

    kept: list[Tensor] | None = None

    def forward(
        self, logits: Float[Tensor, "batch seq vocabulary"], targets: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.kept is not None:
            rows = F.cross_entropy(logits.detach().transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")
            self.kept.append(rows)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def initial_weight(name: str, shape: Sequence[int], layers: int, seed: int) -> Tensor:
    """The initial value of one parameter, as in GPT-2: normal with deviation 0.02, biases 0, norms 1.

    The two projections of each block that write to the residual stream get 0.02/√(2·layers): the stream is a
    sum of 2·layers of them, and so its variance does not grow with depth (Radford et al. 2019, §2.3).

    The numbers depend on name and seed alone, and are drawn on the CPU in float32. So a rank that holds only some of
    the parameters, or uses another device or dtype, starts from the same values.

    Args:
        name: The parameter's full name in `GPT`, such as "blocks.3.mlp.down.weight".
        shape: Its whole shape.
        layers: Number of blocks of the whole model.
        seed: Any integer.

    Returns:
        A float32 tensor on the CPU.
    """
    if name.endswith("bias"):
        return torch.zeros(*shape, dtype=torch.float32, device="cpu")
    if name.endswith("norm.weight"):
        return torch.ones(*shape, dtype=torch.float32, device="cpu")
    residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
    deviation = 0.02 / math.sqrt(2 * layers) if residual else 0.02
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little"))
    return deviation * torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")


class GPT(nn.Module):
    """The model: `embedding`, `blocks`, `norm`, `head`, and `loss`.

    Args:
        config: Sizes and choices.
        seed: Of the initial weights; see `initial_weight`. None: drawn from torch's global generator, so that
            `torch.manual_seed` decides as usual.
    """

    def __init__(self, config: GPTConfig, seed: int | None = None):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.loss = NextTokenLoss()
        if config.tied:
            self.head.weight = self.embedding.tokens.weight
        self.initialize(int(torch.randint(2**31, (), device="cpu")) if seed is None else seed)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Sets the initial weights as GPT-2 does, each from its name and `seed` alone.

        Args:
            seed: Any integer; see `initial_weight`.
        """
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:
                parameter.copy_(initial_weight(name, parameter.shape, self.config.layers, seed))

    def forward(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Float[Tensor, "batch seq vocabulary"], Float[Tensor, ""] | None]:
        """Predicts each position's next token.

        Args:
            tokens: Token numbers, at most `config.positions` in a row.
            targets: The tokens that should follow; `IGNORE` (−100) where there is nothing to learn. None: no loss.

        Returns:
            The logits, and the mean loss in nats per token (None without targets).

        Raises:
            ValueError: If the sequence is longer than `config.positions`.
        """
        x = self.embedding(tokens)  # [batch, seq, hidden]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # [batch, seq, vocabulary]
        return logits, None if targets is None else self.loss(logits, targets)

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch seq"],
        count: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch longer"]:
        """Continues each sequence, token by token, without dropout.

        Args:
            tokens: The beginnings, at least one token each.
            count: Number of tokens to add.
            temperature: Logits are divided by it before the softmax; 0 takes the likeliest token.
            generator: Random numbers for the draws, on the device of `tokens`; None for torch's own.

        Returns:
            The beginnings with `count` tokens appended. The model sees the last `config.positions` of them.

        Raises:
            ValueError: If there is nothing to continue, or `count` or `temperature` is negative.
        """
        if tokens.shape[1] == 0:
            raise ValueError("tokens of length 0 cannot be continued; give at least one token")
        if count < 0 or temperature < 0:
            raise ValueError(f"count={count} and temperature={temperature} must not be negative")
        was_training = self.training
        self.eval()
        try:
            for _ in range(count):
                logits, _ = self(tokens[:, -self.config.positions :])
                logits = logits[:, -1].float()  # [batch, vocabulary]
                if temperature == 0:
                    following = logits.argmax(dim=-1, keepdim=True)  # [batch, 1]
                else:
                    probabilities = (logits / temperature).softmax(dim=-1)
                    following = torch.multinomial(probabilities, 1, generator=generator)  # [batch, 1]
                tokens = torch.cat([tokens, following], dim=1)  # [batch, seq + 1]
        finally:
            self.train(was_training)  # also where somebody has stopped it
        return tokens

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters in `embedding`, `blocks`, `norm` and `head`; a tied head counts as 0."""
        counts = dict.fromkeys(["embedding", "blocks", "norm", "head"], 0)
        for name, parameter in self.named_parameters():
            counts[name.partition(".")[0]] += parameter.numel()
        return counts

    def parameter_count(self) -> int:
        """Number of parameters, a tied weight counted once."""
        return sum(self.parameter_counts().values())
