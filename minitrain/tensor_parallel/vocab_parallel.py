"""Token embedding and output head whose vocabulary is divided over the ranks.

**Idea.** The table with one row per token is the largest matrix of a small model. Each rank holds an equal part of its
rows. It looks up the tokens that it has, and at the other end it computes the logits of the tokens that it has.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3. Megatron-LM also says `VocabParallelEmbedding`.
**Sent.** Embedding: one all-reduce of its output in forward. Head: one all-reduce of its input's gradient in backward.
**Cost.** Each rank holds V'/n rows, V' being the vocabulary V rounded up to a multiple of n, and never more logits than
`[..., V'/n]`. The loss, `minitrain.tensor_parallel.cross_entropy`, takes them as they are.
The full form, `minitrain.tensor_parallel.full.vocab_parallel`, adds a bias, gathered logits, frozen tables, overlap of
backward's all-reduce, and checks of the tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, place
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def shard(table: Tensor, group: Group) -> nn.Parameter:
    """This rank's rows of a whole table; rows from V on are zeros."""
    rank, ranks = place(group)
    padded = F.pad(table.detach(), (0, 0, 0, -len(table) % ranks))  # [V', hidden]
    part = nn.Parameter(padded.chunk(ranks)[rank].clone())  # [V'/n, hidden]
    # `clip_grad_norm` has to know which gradients differ between ranks.
    vars(part)["tensor_parallel_dim"] = 0
    return part


class VocabParallelEmbedding(nn.Module):
    """Looks up tokens, the same on all ranks; every rank gets their rows."""

    def __init__(self, num_embeddings: int, embedding_dim: int, group: Group = None):
        super().__init__()
        self.group = group
        # With the same seed on all ranks, this is the table of one device.
        self.weight = shard(nn.Embedding(num_embeddings, embedding_dim).weight, group)

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, group: Group = None) -> VocabParallelEmbedding:
        with torch.device("meta"):
            part = cls(embedding.num_embeddings, embedding.embedding_dim, group)
        part.weight = shard(embedding.weight, group)
        return part

    def forward(self, tokens: Tensor) -> Tensor:
        rows = len(self.weight)
        local = tokens - place(self.group)[0] * rows
        elsewhere = (local < 0) | (local >= rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)  # [..., hidden]
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        # g: the one rank that has a token's row brings it, the others bring zeros.
        return reduce_from_parallel(found, self.group)


class VocabParallelHead(nn.Module):
    """Computes the logits of this rank's tokens from x, which is the same on all ranks."""

    def __init__(self, in_features: int, vocabulary: int, group: Group = None):
        super().__init__()
        self.vocabulary, self.group = vocabulary, group
        self.weight = shard(nn.Linear(in_features, vocabulary, bias=False).weight, group)

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> VocabParallelHead:
        assert linear.bias is None, "the full form has a bias"
        with torch.device("meta"):
            part = cls(linear.in_features, linear.out_features, group)
        # To tie the head to an embedding, assign that one's `weight` instead.
        part.weight = shard(linear.weight, group)
        return part

    def forward(self, x: Tensor) -> Tensor:
        rows = len(self.weight)
        # f: every rank's logits add to the gradient of x, which is summed in backward.
        logits = F.linear(copy_to_parallel(x, self.group), self.weight)  # [..., V'/n]
        token = place(self.group)[0] * rows + torch.arange(rows, device=x.device)  # [V'/n]
        # e^−∞ = 0: a row that belongs to no token has no share of the softmax.
        return logits.masked_fill(token >= self.vocabulary, -torch.inf)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
