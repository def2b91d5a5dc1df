"""A GPT-2 style language model for one device: the reference that every chapter is compared with.

Tokens and positions are embedded and added. Each block adds attention, then a two-layer MLP, to the residual stream,
each after a LayerNorm (pre-norm). A last LayerNorm and a linear head give the logits of the next token. Radford et al.
2019, "Language Models are Unsupervised Multitask Learners", §2.3. Some choices are newer, and together make a Llama
(Touvron et al. 2023, §2.2) or a Qwen: rotary positions in place of a table, RMSNorm, a gated MLP, fewer heads of keys
and values than of queries, and no biases.

The parts are small modules with one tensor in and one out, so that a chapter can replace one and leave the rest. Sizes
and choices, with their checks, are in `config.py`, rotary positions in `rotary.py`, RMSNorm in `norm.py`, and SwiGLU's
gate in `gate.py`.

Shapes: `[batch, seq, hidden]`; inside attention `[batch, heads, seq, head]`, where usually `hidden = heads · head`.
Heads that share keys and values are also called grouped-query attention (GQA); with a single head of them, multi-query
attention (MQA).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from minitrain.models.config import AttentionKind, GPTConfig

IGNORE = -100  # targets of this value take no part in the loss (torch's own default `ignore_index`)


class Positions(nn.Module):
    """The true positions of the tokens at hand, each in its own sequence: 0, 1, 2, …. Nothing else counts tokens."""

    def forward(self, seq: int, device: torch.device) -> Tensor:  # [seq]
        return torch.arange(seq, device=device)


class Embedding(nn.Module):
    """Tokens [batch, seq] to vectors [batch, seq, hidden], plus those of their positions if these are learned."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        # Rotary positions have no table: attention applies them.
        learned = config.positions_kind == "learned"
        self.positions = nn.Embedding(config.positions, config.hidden) if learned else None
        # A module of its own, since a context-parallel rank does not hold a sequence's first tokens.
        self.places = Positions()
        self.longest = config.positions
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        if seq > self.longest:
            raise ValueError(f"tokens of length {seq} do not fit positions={self.longest}; use at most {self.longest}")
        x = self.tokens(tokens)  # [batch, seq, hidden]
        if self.positions is not None:
            x = x + self.positions(self.places(seq, tokens.device))  # [batch, seq, hidden]
        return self.dropout(x)


class CausalAttention(nn.Module):
    """The core of attention, softmax(QKᵀ/√d + mask) V: no parameters, each head by itself. Vaswani et al. 2017, §3.2.1.

    Args:
        kind: "sdpa" or "plain", equal in result. Only "plain" keeps scores, `seq × seq`, as tensors.
        dropout: Probability of dropping an attention weight.
    """

    def __init__(self, kind: AttentionKind = "sdpa", dropout: float = 0.0):
        super().__init__()
        self.kind = kind
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:  # [batch, heads or kv_heads, seq, head] each
        # Grouped-query attention: several query heads share a key and a value. A kernel reads a shared one where it is,
        # while repeated ones are kept for backward. Only a GPU's fused kernels for 32 bits need them repeated.
        sharing, fused = query.shape[1] // key.shape[1], self.kind == "sdpa"
        reads = fused and not (query.is_cuda and query.dtype.itemsize > 2)
        if sharing > 1 and not reads:
            key = key.repeat_interleave(sharing, dim=1)  # [batch, heads, seq, head]
            value = value.repeat_interleave(sharing, dim=1)  # [batch, heads, seq, head]
        if fused:
            dropout = self.dropout.p if self.training else 0.0
            return F.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=sharing > 1 and reads
            )
        # The same, written out, for lessons that look inside. A position sees itself and earlier ones.
        seq, head = query.shape[-2:]
        later = torch.ones(seq, seq, dtype=torch.bool, device=query.device).triu(diagonal=1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(head)  # [batch, heads, seq, seq]
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        return self.dropout(weights) @ value  # [batch, heads, seq, head]


class Attention(nn.Module):
    """Multi-head causal self-attention with separate query, key and value projections."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_size, biases = config.head, config.biases != "none"
        width, kv_width = (heads * self.head_size for heads in (config.heads, config.kv_heads or config.heads))
        self.query = nn.Linear(config.hidden, width, biases)
        self.key = nn.Linear(config.hidden, kv_width, biases)
        self.value = nn.Linear(config.hidden, kv_width, biases)
        self.query_norm, self.key_norm = config.head_norm(), config.head_norm()  # None in most models
        self.rotary = config.rotary()  # None where positions are learned
        self.core = CausalAttention(config.attention, config.dropout)
        self.output = nn.Linear(width, config.hidden, config.biases == "all")

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, hidden]
        return self.mix(self.query(x), self.key(x), self.value(x))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # [batch, seq, width] each
        """What comes after the first three projections: each head by itself, then the output projection."""
        query = self.split_heads(query, self.query_norm)  # [batch, heads, seq, head]
        key = self.split_heads(key, self.key_norm)  # [batch, kv_heads, seq, head]
        value = self.split_heads(value)  # [batch, kv_heads, seq, head]
        if self.rotary is not None:
            query, key = self.rotary(query, key)  # same shapes; values have no position
        mixed = self.core(query, key, value)  # [batch, heads, seq, head]
        return self.output(mixed.transpose(1, 2).flatten(2))  # [batch, seq, hidden]

    def split_heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        # The number of heads is read off the width, so this also works on the heads of one tensor-parallel rank.
        x = x.unflatten(-1, (-1, self.head_size))  # [batch, seq, heads, head]
        # Before heads and tokens change places: the norm of a transposed tensor is one, and attention would copy it.
        return (x if norm is None else norm(x)).transpose(1, 2)


class MLP(nn.Module):
    """Two linear layers, four times as wide in between, with GPT-2's tanh approximation of GELU; or SwiGLU.

    In SwiGLU a third layer gates each hidden unit: silu(gate(x)) · up(x). Shazeer 2020, "GLU Variants Improve
    Transformer".
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        inner, biases = config.mlp_hidden or 4 * config.hidden, config.biases == "all"
        self.up = nn.Linear(config.hidden, inner, biases)
        self.gate = nn.Linear(config.hidden, inner, biases) if config.mlp == "swiglu" else None
        self.gated = config.gated
        self.down = nn.Linear(inner, config.hidden, biases)

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, hidden]
        return self.mix(self.up(x)) if self.gate is None else self.mix(self.up(x), self.gate(x))

    def mix(self, wide: Tensor, gate: Tensor | None = None) -> Tensor:  # [batch, seq, 4·hidden] each
        """What comes after the first layers: each hidden unit by itself, then the layer that mixes them."""
        wide = F.gelu(wide, approximate="tanh") if gate is None else self.gated(gate, wide)
        return self.down(wide)  # [batch, seq, hidden]


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        # Norms and residual dropout are here, and not in `Attention` and `MLP`: tensor parallelism splits what is
        # inside those two, sequence parallelism what is between them.
        self.attention_norm = config.make_norm()
        self.attention = Attention(config)
        self.attention_dropout = nn.Dropout(config.dropout)
        self.mlp_norm = config.make_norm()
        self.mlp = MLP(config)
        self.mlp_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, hidden]
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        x = x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))
        return x


class NextTokenLoss(nn.Module):
    """Cross-entropy in nats, averaged over the targets that are not `IGNORE` (not a number if all are).

    Attributes:
        kept: Where it is a list, the losses of single tokens, [batch, seq], are added to it in each call.
    """

    kept: list[Tensor] | None = None

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:  # [batch, seq, vocabulary] and [batch, seq] to []
        # In float32 at least: bfloat16 has 8 bits of mantissa, too few for a logarithm of a sum.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.kept is not None:
            rows = F.cross_entropy(logits.detach().transpose(1, 2), targets, ignore_index=IGNORE, reduction="none")
            self.kept.append(rows)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


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
        self.norm = config.make_norm()
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.loss = NextTokenLoss()
        if config.tied:
            # One parameter in two places: its gradient is the sum of both (Press & Wolf 2017).
            self.head.weight = self.embedding.tokens.weight
        self.initialize(int(torch.randint(2**31, (), device="cpu")) if seed is None else seed)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Set the initial weights as GPT-2 does, each from its name and `seed` alone (`initial_weight`)."""
        for name, parameter in self.named_parameters():
            if not parameter.is_meta:
                parameter.copy_(initial_weight(name, parameter.shape, self.config.layers, seed))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Predict each position's next token.

        Args:
            tokens: [batch, seq], at most `config.positions` in a row.
            targets: The tokens that should follow, [batch, seq]; `IGNORE` (−100) where there is nothing to learn. None:
                no loss.

        Returns:
            The logits, [batch, seq, vocabulary], and the mean loss in nats per token, [] (None without targets).
        """
        x = self.embedding(tokens)  # [batch, seq, hidden]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # [batch, seq, vocabulary]
        return logits, None if targets is None else self.loss(logits, targets)

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, count: int, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Continue each sequence, token by token, without dropout.

        Args:
            tokens: The beginnings, [batch, seq], at least one token each.
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
                # All tokens again for each new one; chapter 20 keeps their keys and values instead.
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

    def parameter_count(self) -> int:
        """Number of parameters, a tied weight counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


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
