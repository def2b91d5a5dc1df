"""The full form of `minitrain.tensor_parallel.vocab_parallel` adds a bias, gathered logits, overlap, and checks.

Rank r of n holds rows r·V'/n up to (r+1)·V'/n of the table. Rows from V on are padding: zeros that no token looks up.
**Their logits are set to −∞**, because otherwise they would be 0, take part in the softmax, and might even be the
largest. A tied head has the same parameter as the embedding.

Open `tensor_parallel/full/linear.py` first, and `tensor_parallel/full/cross_entropy.py` after this file.
**Sent.** `gather_logits` adds an all-gather, for generation; the loss needs none.
**Cost.** `minitrain.costs.vocabulary`: `table_bytes` held, and an all-reduce of a batch's hidden states each way.
Megatron-LM pads each rank's rows to a multiple of 128. In DTensor the embedding is `RowwiseParallel`, the head
`ColwiseParallel`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.tensor_parallel.full.checks import check_same, check_tokens
from minitrain.tensor_parallel.full.cross_entropy import vocab_parallel_cross_entropy
from minitrain.tensor_parallel.full.linear import column_parallel
from minitrain.tensor_parallel.full.mappings import gather_from_parallel, reduce_from_parallel
from minitrain.tensor_parallel.full.parameter_layout import ParallelLayer, mark


@dataclass(frozen=True)
class Rows:
    """Which rows of the vocabulary a rank holds."""

    held: int  # V'/n, as many on each rank
    start: int  # the token of the first
    real: int  # how many belong to a token; the rest is padding

    @classmethod
    def of(cls, vocabulary: int, comm: AnyComm = None) -> Rows:
        """Those of this rank."""
        comm = as_comm(comm)
        if vocabulary < 1:
            raise ValueError(f"vocabulary={vocabulary} must be at least 1")
        # Rounded up, since gathered logits must be equally many on all ranks.
        held = -(-vocabulary // comm.ranks)
        start = comm.rank * held
        return cls(held, start, min(max(vocabulary - start, 0), held))

    def cut(self, whole: Float[Tensor, "tokens ..."]) -> nn.Parameter:
        """A parameter with these rows of a whole table, in memory of its own; padding is zero."""
        # Padding takes part in the head's product, and −∞ added to a NaN would not hide it.
        part = whole.detach().new_zeros(self.held, *whole.shape[1:])
        part[: self.real] = whole.detach()[self.start : self.start + self.real]
        return nn.Parameter(part, requires_grad=whole.requires_grad)


class VocabParallelEmbedding(ParallelLayer):
    """`nn.Embedding` whose rows are cut over the ranks; every rank gets the whole output.

    A new one draws the whole table, as `nn.Embedding` does, and keeps its rows. So with equal seeds on all ranks it is
    one device's table, whatever the number of ranks.

    Args:
        num_embeddings: V, the number of tokens.
        embedding_dim: h.
        comm: The ranks that share the rows, as of `minitrain.comm.comm.Comm`; None means everyone. Checking compares
            tokens across ranks and with the vocabulary; a GPU must then finish all that it was given.

    Attributes:
        weight: This rank's rows, `[vocabulary/tp, hidden]`.
        rows: Which these are.

    Examples:
        >>> from minitrain.tensor_parallel import VocabParallelEmbedding
        >>> embedding = VocabParallelEmbedding.from_embedding(model.embedding)
        >>> x = embedding(torch.tensor([[1, 2, 3]]))  # [batch, seq, hidden], on every rank
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, comm: AnyComm = None):
        super().__init__(comm)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.rows = Rows.of(num_embeddings, self.comm)
        self._take(nn.Embedding(num_embeddings, embedding_dim))

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, comm: AnyComm = None) -> VocabParallelEmbedding:
        """Cut this rank's rows out of a whole embedding, which keeps its own.

        Raises:
            ValueError: The embedding has an option that needs the whole table, or another kind of gradient; with
                checking also if the weights differ between ranks.
        """
        for option in ("padding_idx", "max_norm", "scale_grad_by_freq", "sparse"):
            value = getattr(embedding, option)
            if value is not None and value is not False:  # padding_idx=0 is a choice
                raise ValueError(
                    f"embedding: {option}={value} is not supported where the rows are cut; make it without {option}"
                )
        # There nothing is drawn or allocated for a table that is replaced at once.
        with torch.device("meta"):
            part = cls(embedding.num_embeddings, embedding.embedding_dim, comm)
        check_same(f"{cls.__name__}.from_embedding", "embedding.weight", embedding.weight, part.comm)
        part._take(embedding)
        return part

    def _take(self, embedding: nn.Embedding) -> None:
        self.weight = self.rows.cut(embedding.weight)
        self.mark_parameters()

    def mark_parameters(self) -> None:
        mark(self.weight, 0, comm=self.comm)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch hidden"]:
        """Look up every token.

        Raises:
            ValueError: With checking, on every rank alike: the ranks bring different tokens.
            IndexError: With checking, on every rank alike: a token is outside the vocabulary. Unchecked it gives zeros.
        """
        check_tokens(type(self).__name__, "tokens", tokens, self.num_embeddings, self.comm)
        places = tokens - self.rows.start
        elsewhere = (places < 0) | (places >= self.rows.real)
        # Any row will do for the tokens of other ranks: zeros take its place.
        found = F.embedding(places.masked_fill(elsewhere, 0), self.weight)  # [batch, seq, hidden]
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        # g: the one rank that has a token's row brings it, the others bring zeros.
        return reduce_from_parallel(found, self.comm)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.rows}"


class VocabParallelHead(ParallelLayer):
    """The output head: this rank's columns of the logits, −∞ where it has padding.

    Args:
        in_features: h.
        vocabulary: V, the number of tokens.
        bias: Whether each token has a bias.
        comm: The ranks that share the rows, as of `minitrain.comm.comm.Comm`; None means everyone.

    Attributes:
        weight: This rank's rows, `[vocabulary/tp, hidden]`.
        bias: This rank's part, `[vocabulary/tp]`, or None.
        rows: Which these are.

    Examples:
        >>> from minitrain.tensor_parallel import VocabParallelEmbedding, VocabParallelHead
        >>> embedding = VocabParallelEmbedding.from_embedding(model.embedding)
        >>> head = VocabParallelHead.from_linear(model.head, shard=embedding.weight)  # tied
        >>> logits = head(embedding(torch.tensor([[1, 2]])))  # [batch, seq, vocabulary/tp]
    """

    def __init__(self, in_features: int, vocabulary: int, bias: bool = False, comm: AnyComm = None):
        super().__init__(comm)
        self.in_features, self.vocabulary = in_features, vocabulary
        self.rows = Rows.of(vocabulary, self.comm)
        self._take(nn.Linear(in_features, vocabulary, bias), None)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, comm: AnyComm = None, *, shard: nn.Parameter | None = None
    ) -> VocabParallelHead:
        """Cut this rank's rows out of a whole head, which keeps its own.

        Args:
            linear: The head of one device, from hidden to the vocabulary.
            comm: The ranks that share the rows, as for the class.
            shard: The parameter to use for the weight where it is tied: a `VocabParallelEmbedding`'s. None: its own.

        Raises:
            ValueError: `shard` has another shape than this rank's rows; with checking also if the weights differ
                between ranks.
        """
        with torch.device("meta"):
            head = cls(linear.in_features, linear.out_features, linear.bias is not None, comm)
        if shard is not None and shard.shape != head.weight.shape:
            raise ValueError(
                f"shard of shape {tuple(shard.shape)} does not fit this rank's rows {tuple(head.weight.shape)}; "
                "give the embedding's weight with which the head was tied"
            )
        check_same(f"{cls.__name__}.from_linear", "linear.weight", linear.weight, head.comm)
        head._take(linear, shard)
        return head

    def _take(self, linear: nn.Linear, shard: nn.Parameter | None) -> None:
        # Tied, it is the same parameter, so that both uses add to one gradient.
        self.weight = self.rows.cut(linear.weight) if shard is None else shard
        self.bias = None if linear.bias is None else self.rows.cut(linear.bias)
        self.mark_parameters()

    def mark_parameters(self) -> None:
        for parameter in self.parameters():
            mark(parameter, 0, comm=self.comm)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch columns"]:
        """This rank's logits, `[batch, seq, vocabulary/tp]`, of an x that is the same on all ranks.

        Raises:
            ValueError: With checking, if x differs between ranks.
        """
        check_same(type(self).__name__, "x", x, self.comm)
        bias = self.bias
        if self.rows.real < self.rows.held:
            # e^−∞ = 0: no share of the softmax, no gradient, and never the largest.
            mask = self.weight.new_zeros(self.rows.held)
            mask[self.rows.real :] = -torch.inf
            bias = mask if bias is None else bias + mask
        # A product by columns: in backward every rank's logits add to the gradient of x, in one all-reduce.
        return column_parallel(x, [self.weight], [bias], self.comm)[0]

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.vocabulary}, {self.rows}, bias={self.bias is not None}"


class VocabParallelLoss(ParallelLayer):
    """`vocab_parallel_cross_entropy` in place of the reference's `NextTokenLoss`; arguments and `kept` as there."""

    kept: list[Tensor] | None = None

    def __init__(self, vocabulary: int, comm: AnyComm = None, ignore_index: int = -100):
        super().__init__(comm)
        self.vocabulary, self.ignore_index = vocabulary, ignore_index

    def forward(self, logits: Float[Tensor, "*batch columns"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        return vocab_parallel_cross_entropy(
            logits, targets, self.comm, self.ignore_index, vocabulary=self.vocabulary, kept=self.kept
        )


def gather_logits(
    logits: Float[Tensor, "*batch columns"], vocabulary: int, comm: AnyComm = None
) -> Float[Tensor, "*batch vocabulary"]:
    """All ranks' logits side by side, without those of padding: for generation, where all draw the same token."""
    return gather_from_parallel(logits, comm)[..., :vocabulary]
