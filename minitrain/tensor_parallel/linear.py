"""A linear layer over several ranks: its matrix is divided by columns, or by rows.

**Idea.** Y = XA + b. With some columns of A, a rank makes some columns of Y and needs no other rank (column-parallel).
With some rows of A, it takes the columns of X that go with them and makes a partial sum of Y (row-parallel). In a row
they fit: the columns of Y that the first leaves on a rank are the columns of X that the second takes.
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3. PyTorch's names are `ColwiseParallel` and `RowwiseParallel`.
**Sent.** Column: one all-reduce of X's gradient in backward. Row: one all-reduce of Y in forward.
**Cost.** Each rank holds 1/n of A, as `weight` = Aᵀ, and computes 1/n of each product. Only row-parallel's b is whole.
The full form, `minitrain.tensor_parallel.full.linear`, adds overlap of backward's all-reduce with the weight's
gradient, gathered outputs, whole inputs, pieces held by several ranks, frozen parameters, and checks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, place
from minitrain.tensor_parallel.mappings import copy_to_parallel, reduce_from_parallel


def shard(whole: Tensor, dim: int, group: Group) -> nn.Parameter:
    """This rank's part of one dim, in memory of its own."""
    rank, ranks = place(group)
    assert whole.shape[dim] % ranks == 0, "a matrix is divided into equal parts"
    part = whole.detach().chunk(ranks, dim)[rank]
    part = nn.Parameter(part.clone(memory_format=torch.contiguous_format))
    # `clip_grad_norm` has to know which gradients differ between ranks.
    vars(part)["tensor_parallel_dim"] = dim
    return part


class ColumnParallelLinear(nn.Module):
    """x is whole and the same on all ranks; each makes its part of the output, with its part of the bias."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: Group = None):
        super().__init__()
        self.group = group
        # With the same seed on all ranks, these are the weights of one device.
        self.take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> ColumnParallelLinear:
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, group)
        layer.take(linear)
        return layer

    def take(self, linear: nn.Linear) -> None:
        self.weight = shard(linear.weight, 0, self.group)  # [out/n, in]
        self.bias = None if linear.bias is None else shard(linear.bias, 0, self.group)  # [out/n]

    def forward(self, x: Tensor) -> Tensor:
        # f: nothing now; the gradient of x is summed over ranks in backward.
        x = copy_to_parallel(x, self.group)
        return F.linear(x, self.weight, self.bias)  # [..., out/n]


class RowParallelLinear(nn.Module):
    """x is this rank's part of the input; the output is whole, the same on all ranks."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: Group = None):
        super().__init__()
        self.group = group
        self.take(nn.Linear(in_features, out_features, bias))

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: Group = None) -> RowParallelLinear:
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, linear.bias is not None, group)
        layer.take(linear)
        return layer

    def take(self, linear: nn.Linear) -> None:
        self.weight = shard(linear.weight, 1, self.group)  # [out, in/n]
        # Whole on every rank, where its gradient is whole as well.
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        # g: every rank has made a partial sum of y, and gets their sum.
        y = reduce_from_parallel(F.linear(x, self.weight), self.group)  # [..., out]
        # Once, after the sum; before it, the bias would be added n times.
        return y if self.bias is None else y + self.bias


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
