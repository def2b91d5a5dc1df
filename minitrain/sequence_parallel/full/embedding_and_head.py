"""The layers outside of attention and MLP, on sequence shards: the embedding, and the output head.

Open `sequence_parallel/full/linear.py` first. Norms are those of `tensor_parallel/full/norm.py`.
**The table of positions is on every rank in full, but applied to different tokens**, as norms are. So a rank's gradient
of it is a partial sum, and it is marked as partial. If it were not, every rank would learn from its own tokens, and the
copies would drift apart.

**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2 and §4.3.
**Sent.** Embedding: a reduce-scatter in forward, an all-gather in backward, as every rank looks up all tokens in its
rows. Head: the opposite, and with `keep_gathered=False` another all-gather in backward. The loss is chapter 08's.
**Cost.** `minitrain.costs.sequence_parallel.ends_calls`.
Also called `reduce_scatter_embeddings` (Megatron-LM); `SequenceParallel()`, `PrepareModuleInput` (PyTorch DTensor).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.models import gpt as reference
from minitrain.sequence_parallel.full.linear import column_from_sequence
from minitrain.sequence_parallel.full.mappings import reduce_scatter_to_sequence
from minitrain.tensor_parallel.full.checks import check_split, check_tokens
from minitrain.tensor_parallel.full.parameter_layout import ParallelLayer, mark_partial
from minitrain.tensor_parallel.full.vocab_parallel import VocabParallelEmbedding, VocabParallelHead


class PositionsOnSequence(ParallelLayer):
    """The table of positions, with the very weight of `positions`; each rank looks up those of its own tokens."""

    def __init__(self, positions: nn.Embedding, layer: ParallelLayer):
        super().__init__(layer.comm)
        self.num_embeddings, self.weight = positions.num_embeddings, positions.weight
        self.mark_parameters()

    def mark_parameters(self) -> None:
        mark_partial(self.weight)

    def forward(self, places: Int[Tensor, " seq"]) -> Float[Tensor, "shard hidden"]:
        """The rows of this rank's tokens in a sequence with these positions, `[seq/tp, hidden]`."""
        shard = check_split("seq", len(places), self.ranks)
        # A copy: backward keeps it, and a view would keep all positions.
        return F.embedding(places.narrow(0, self.rank * shard, shard).clone(), self.weight)


class TokensToSequence(VocabParallelEmbedding):
    """`VocabParallelEmbedding` that returns this rank's tokens; arguments and weights are those of its base."""

    @classmethod
    def of(cls, layer: VocabParallelEmbedding) -> TokensToSequence:
        """The same table, with the very same weight, that returns sequence shards."""
        with torch.device("meta"):
            made = cls(layer.num_embeddings, layer.embedding_dim, layer.comm)
        made.weight = layer.weight
        made.mark_parameters()
        return made

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch shard hidden"]:
        """Look up all tokens on every rank, and return this rank's, `[batch, seq/tp, hidden]`.

        Raises:
            ValueError: On every rank: the sequence cannot be divided over the ranks; with checking, also if the tokens
                differ between ranks.
            IndexError: With checking, on every rank: a token is outside the vocabulary. Without, its row is zeros.
        """
        check_split("seq", tokens.shape[1], self.ranks)
        check_tokens(type(self).__name__, "tokens", tokens, self.num_embeddings, self.comm)
        places = tokens - self.rows.start
        elsewhere = (places < 0) | (places >= self.rows.real)
        found = F.embedding(places.masked_fill(elsewhere, 0), self.weight)  # [batch, seq, hidden]
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        # ḡ: the one rank that holds a token's row sends it, the others send zeros; the sum goes to the token's rank.
        return reduce_scatter_to_sequence(found, self.comm)


class EmbeddingToSequence(reference.Embedding):
    """`gpt.Embedding` that returns this rank's tokens, with their positions if these are learned.

    Args:
        embedding: One whose table of tokens is divided over the ranks (`minitrain.tensor_parallel.vocab_parallel`).
    """

    tokens: TokensToSequence  # type: ignore[bad-override]
    positions: PositionsOnSequence | None  # type: ignore[bad-override]

    def __init__(self, embedding: reference.Embedding):
        nn.Module.__init__(self)
        assert isinstance(embedding.tokens, VocabParallelEmbedding)
        self.tokens = TokensToSequence.of(embedding.tokens)
        table = embedding.positions
        self.positions = None if table is None else PositionsOnSequence(table, self.tokens)
        self.places, self.longest = embedding.places, embedding.longest
        self.dropout = embedding.dropout
        self.train(embedding.training)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch shard hidden"]:
        """`[batch, seq/tp, hidden]`; errors as `TokensToSequence.forward`, and if the sequence is too long."""
        seq = tokens.shape[1]
        if seq > self.longest:
            raise ValueError(f"tokens of length {seq} do not fit positions={self.longest}; use at most {self.longest}")
        x = self.tokens(tokens)  # [batch, seq/tp, hidden]
        if self.positions is not None:
            x = x + self.positions(self.places(seq, tokens.device))  # [batch, seq/tp, hidden]
        return self.dropout(x)


class HeadFromSequence(VocabParallelHead):
    """`VocabParallelHead` that takes this rank's tokens; arguments and weights are those of its base.

    Attributes:
        keep_gathered: Keep all tokens of the input for backward, and do not gather them again. False at first.
    """

    keep_gathered: bool = False

    @classmethod
    def of(cls, layer: VocabParallelHead, keep_gathered: bool = False) -> HeadFromSequence:
        """The same head, with the very same parameters, on sequence shards."""
        with torch.device("meta"):
            made = cls(layer.in_features, layer.vocabulary, layer.bias is not None, layer.comm)
        made.weight, made.bias, made.keep_gathered = layer.weight, layer.bias, keep_gathered
        made.mark_parameters()
        return made

    def forward(self, x: Float[Tensor, "batch shard hidden"]) -> Float[Tensor, "batch seq columns"]:
        """This rank's logits of all tokens, `[batch, seq, vocabulary/tp]`; x has its own, `[batch, seq/tp, hidden]`.

        Raises:
            ValueError: With checking, if shape or dtype of x differ between ranks.
        """
        (logits,) = column_from_sequence(x, [self.weight], [self.bias], self.comm, self.keep_gathered)
        if self.rows.real < self.rows.held:
            logits[..., self.rows.real :] = -torch.inf  # e^−∞ = 0: no share of the softmax, no gradient, never largest
        return logits.transpose(0, 1)  # [batch, seq, vocabulary/tp]
