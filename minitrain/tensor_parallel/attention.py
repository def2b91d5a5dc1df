"""Attention and MLP of a GPT block over several ranks: a product by columns, local work, a product by rows.

**Idea.** Each head of attention, and each hidden unit of the MLP, works by itself between two matrices. So divide the
first matrix by columns and the second by rows: the columns that the first computes are those that the second needs.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, figures 3 and 4. Also called tensor model parallelism.
**Sent.** Two all-reduces of `[batch, seq, hidden]` in forward (g, after each second matrix) and two in backward (f,
before each first matrix; query, key and value share one).
**Cost.** Each rank holds 1/n of the matrices, of the inner biases and of the heads, and does 1/n of their work. The
residual stream, the norms and the two outer biases are on every rank.
The full form, `minitrain.tensor_parallel.full.attention`, adds what a Llama has (fewer key and value heads than query
heads or ranks, rotation, a gated MLP, no biases), overlap of backward's all-reduces, and checks;
`minitrain.tensor_parallel.dropout_rng` adds dropout. This form refuses all of these, to stay at two products and a sum.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def shard(linear: nn.Linear, dim: int, group: Group) -> nn.Linear:
    """A smaller layer with this rank's outputs (dim 0, column-parallel) or inputs (dim 1, row-parallel).

    It sends nothing: f and g are called below, because query, key and value share one f.
    """
    rank, ranks = rank_and_size(group)
    weight = linear.weight.detach().chunk(ranks, dim)[rank]  # [out/n, in] or [out, in/n]
    # A row-parallel bias is on every rank, because it is added after the sum.
    bias = linear.bias.detach().chunk(ranks)[rank] if dim == 0 else linear.bias.detach()
    # The meta device draws no random numbers, and both parameters are replaced at once.
    part = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    part.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), linear.weight.requires_grad)
    part.bias = nn.Parameter(bias.clone(), linear.bias.requires_grad)
    # An attribute of the parameter: `clip_grad_norm` must know which gradients differ between ranks.
    for parameter in (part.weight, part.bias) if dim == 0 else (part.weight,):
        parameter.tensor_parallel_dim = dim  # type: ignore[missing-attribute]
    return part


class ParallelAttention(nn.Module):
    """This rank's heads of a `gpt.Attention`; x and the output are the same on all ranks."""

    def __init__(self, attention: Any, group: Group = None):
        super().__init__()
        self.group, self.head_size = group, attention.head_size
        # Softmax(QKᵀ)V, which works for any number of heads.
        self.core = attention.core
        heads = attention.query.out_features // attention.head_size
        assert heads % rank_and_size(group)[1] == 0, "all ranks have equally many heads"
        assert attention.key.out_features == attention.query.out_features, "the full form shares keys"
        assert attention.rotary is None, "the full form rotates queries and keys"
        assert len(list(attention.parameters())) == 8, "there are four layers with biases"
        assert not any(isinstance(m, nn.Dropout) and m.p for m in attention.modules()), "`dropout_rng` adds dropout"
        self.query = shard(attention.query, 0, group)
        self.key = shard(attention.key, 0, group)
        self.value = shard(attention.value, 0, group)
        self.output = shard(attention.output, 1, group)

    def forward(self, x: Tensor) -> Tensor:
        # f, once for three products: in backward autograd adds up their gradients, and f all-reduces the sum.
        x = copy_to_parallel(x, self.group)  # [batch, seq, hidden]
        q, k, v = self.query(x), self.key(x), self.value(x)  # each [batch, seq, hidden/n]
        # This rank's heads become a dim of their own: each [batch, heads/n, seq, head_size].
        q, k, v = (each.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for each in (q, k, v))
        y = self.core(q, k, v)  # [batch, heads/n, seq, head_size]
        y = y.transpose(1, 2).flatten(2)  # [batch, seq, hidden/n]
        # g all-reduces: each rank's heads give a partial sum of the output.
        y = reduce_from_parallel(F.linear(y, self.output.weight), self.group)  # [batch, seq, hidden]
        return y + self.output.bias


class ParallelMLP(nn.Module):
    """This rank's hidden units of a `gpt.MLP`; x and the output are the same on all ranks."""

    def __init__(self, mlp: Any, group: Group = None):
        super().__init__()
        self.group = group
        assert mlp.up.out_features % rank_and_size(group)[1] == 0, "all ranks have equally many units"
        assert len(list(mlp.parameters())) == 4, "there are two layers with biases"
        self.up, self.down = shard(mlp.up, 0, group), shard(mlp.down, 1, group)

    def forward(self, x: Tensor) -> Tensor:
        # f sends nothing here; backward all-reduces the gradient of x.
        x = copy_to_parallel(x, self.group)  # [batch, seq, hidden]
        # GELU works on each hidden unit by itself, so nothing is sent between the two products.
        y = F.gelu(self.up(x), approximate="tanh")  # [batch, seq, 4·hidden/n]
        # g all-reduces: each rank's hidden units give a partial sum of the output.
        y = reduce_from_parallel(F.linear(y, self.down.weight), self.group)  # [batch, seq, hidden]
        return y + self.down.bias


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
