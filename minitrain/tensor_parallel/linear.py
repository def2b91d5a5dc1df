"""A linear layer over several ranks: its matrix is divided by columns, or by rows.

**Idea.** Y = XA + b. A rank that holds some columns of A computes the same columns of Y and needs no other rank
(column-parallel). A rank that holds some rows of A needs only the matching columns of X, and computes a partial sum of
Y (row-parallel). The second follows the first without a message, since it takes the columns that the first has made.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3. PyTorch's names are `ColwiseParallel` and `RowwiseParallel`.
**Sent.** Column: one all-reduce of X's gradient in backward. Row: one all-reduce of Y in forward.
**Cost.** Each rank holds 1/n of A and does 1/n of the work. Of the biases, row-parallel's alone is on every rank.
`nn.Linear` stores Aᵀ as `weight`, so columns of A are rows of `weight` (dim 0), and rows of A are its columns (dim 1).
The full form, `minitrain.tensor_parallel.full.linear`, adds overlap of backward's all-reduce with the weight's
gradient, gathered outputs, unsharded inputs, shards held by several ranks, and checks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def shard(whole: Tensor, dim: int, group: Group) -> nn.Parameter:
    """This rank's shard of a weight or bias, divided along `dim`."""
    rank, ranks = rank_and_size(group)
    assert whole.shape[dim] % ranks == 0, "a matrix is divided into equal parts"
    part = whole.detach().chunk(ranks, dim)[rank]
    # A clone, because a view would keep the whole matrix in memory.
    parameter = nn.Parameter(part.clone(memory_format=torch.contiguous_format), whole.requires_grad)
    # An attribute of the parameter: `clip_grad_norm` must know which gradients differ between ranks.
    parameter.tensor_parallel_dim = dim  # type: ignore[missing-attribute]
    return parameter


class ColumnParallelLinear(nn.Module):
    """[..., in], the same on all ranks, to [..., out/n]: each rank computes its part of the output features."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: Group = None):
        super().__init__()
        self.group = group
        # All ranks draw the whole matrix: with the same seed, the weights are those of one device.
        self.take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> ColumnParallelLinear:
        """This rank's shard of an existing layer, which keeps its own weights."""
        # On the meta device the constructor draws no random numbers and allocates nothing.
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, group)
        layer.take(linear)
        return layer

    def take(self, linear: nn.Linear) -> None:
        """Keep this rank's columns of A, with their part of the bias."""
        self.weight = shard(linear.weight, 0, self.group)  # [out/n, in]
        self.bias = None if linear.bias is None else shard(linear.bias, 0, self.group)  # [out/n]

    def forward(self, x: Tensor) -> Tensor:
        # f sends nothing here; backward all-reduces the gradient of x.
        x = copy_to_parallel(x, self.group)  # [..., in]
        return F.linear(x, self.weight, self.bias)  # [..., out/n]


class RowParallelLinear(nn.Module):
    """[..., in/n], this rank's part of the input features, to [..., out], the same on all ranks."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: Group = None):
        super().__init__()
        self.group = group
        self.take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> RowParallelLinear:
        """This rank's shard of an existing layer, which keeps its own weights."""
        # On the meta device the constructor draws no random numbers and allocates nothing.
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, group)
        layer.take(linear)
        return layer

    def take(self, linear: nn.Linear) -> None:
        """Keep this rank's rows of A, and the whole bias."""
        self.weight = shard(linear.weight, 1, self.group)  # [out, in/n]
        # The bias is on every rank; its gradient is the same everywhere and needs no sum.
        bias = linear.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)  # [out]

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)  # [..., out]
        # g all-reduces: every rank sends its partial sum, and receives the sum over all ranks.
        y = reduce_from_parallel(y, self.group)  # [..., out]
        # **After the sum**, because before it the bias would be added n times.
        return y if self.bias is None else y + self.bias


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
