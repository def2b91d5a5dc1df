"""Token embedding and output head whose vocabulary is divided over the ranks.

**Idea.** The embedding table has one row for each token of the vocabulary, and is the largest matrix of a small model.
Each rank holds an equal share of its rows. The embedding looks up the tokens whose rows this rank holds, and the head
computes the logits of the same tokens.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3. The name `VocabParallelEmbedding` is from Megatron-LM's code.
**Sent.** Embedding: one all-reduce of its output in forward. Head: one all-reduce of its input's gradient in backward.
**Cost.** Let V' be the vocabulary V, rounded up to a multiple of n. Each rank holds V'/n rows and `[..., V'/n]` logits,
and never all logits: the loss, `minitrain.tensor_parallel.cross_entropy`, needs only each rank's own.
The full form, `minitrain.tensor_parallel.full.vocab_parallel`, adds a bias, gathered logits, overlap of backward's
all-reduce, and checks on all ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def shard(table: Tensor, group: Group) -> nn.Parameter:
    """This rank's rows of a table `[V, hidden]`; the padding, rows V to V' − 1, is zeros."""
    rank, ranks = rank_and_size(group)
    padded = F.pad(table.detach(), (0, 0, 0, -len(table) % ranks))  # [V', hidden]
    parameter = nn.Parameter(padded.chunk(ranks)[rank].clone(), table.requires_grad)  # [V'/n, hidden]
    # An attribute of the parameter: `clip_grad_norm` must know which gradients differ between ranks.
    parameter.tensor_parallel_dim = 0  # type: ignore[missing-attribute]
    return parameter


class VocabParallelEmbedding(nn.Module):
    """Tokens [...], the same on all ranks, to their rows [..., hidden], on every rank."""

    def __init__(self, num_embeddings: int, embedding_dim: int, group: Group = None):
        super().__init__()
        self.vocabulary, self.group = num_embeddings, group
        # All ranks draw the whole table: with the same seed, it is that of one device.
        self.weight = shard(nn.Embedding(num_embeddings, embedding_dim).weight, group)

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, group: Group = None) -> VocabParallelEmbedding:
        """This rank's shard of an existing embedding, which keeps its own table."""
        assert embedding.padding_idx is None and embedding.max_norm is None, "a row that is not looked up as it is"
        assert not embedding.scale_grad_by_freq and not embedding.sparse, "another gradient"
        # On the meta device the constructor draws no random numbers and allocates nothing.
        with torch.device("meta"):
            layer = cls(embedding.num_embeddings, embedding.embedding_dim, group)
        layer.weight = shard(embedding.weight, group)
        return layer

    def forward(self, tokens: Tensor) -> Tensor:
        (rank, _), rows = rank_and_size(self.group), len(self.weight)
        # Else no rank would have its row, and the sum would be zeros. On a GPU, this waits for the tokens.
        assert ((tokens >= 0) & (tokens < self.vocabulary)).all(), f"a token is outside of {self.vocabulary=}"
        row = tokens - rank * rows  # [...], within this rank's table
        elsewhere = (row < 0) | (row >= rows)
        # Tokens that other ranks hold look up row 0, which is then replaced by zeros.
        x = F.embedding(row.masked_fill(elsewhere, 0), self.weight)  # [..., hidden]
        x = x.masked_fill(elsewhere.unsqueeze(-1), 0)
        # g all-reduces: for each token, one rank adds its row and the others add zeros.
        return reduce_from_parallel(x, self.group)


class VocabParallelHead(nn.Module):
    """x [..., hidden], the same on all ranks, to the logits [..., V'/n] of this rank's tokens."""

    def __init__(self, in_features: int, vocabulary: int, group: Group = None):
        super().__init__()
        self.vocabulary, self.group = vocabulary, group
        self.weight = shard(nn.Linear(in_features, vocabulary, bias=False).weight, group)

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> VocabParallelHead:
        """This rank's shard of an existing head; to tie it to an embedding, assign the embedding's `weight` to it."""
        assert linear.bias is None, "the full form has a bias"
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, group)
        layer.weight = shard(linear.weight, group)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        (rank, _), rows = rank_and_size(self.group), len(self.weight)
        # f sends nothing here; backward all-reduces the gradient of x, to which every rank's logits contribute.
        logits = F.linear(copy_to_parallel(x, self.group), self.weight)  # [..., V'/n]
        token = rank * rows + torch.arange(rows, device=x.device)  # [V'/n]
        # Padding must have no share of the softmax: e^−∞ = 0, whereas the logit 0 of its zeros would give e⁰ = 1.
        return logits.masked_fill(token >= self.vocabulary, -torch.inf)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
