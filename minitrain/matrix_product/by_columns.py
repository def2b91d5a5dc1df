"""Y = XW split by columns of W: each rank holds some columns of W and the whole of X.

**Idea.** A column of Y needs one column of W and all of X. So each rank computes its columns of Y alone: Y_r = X W_r.
Every column of W takes from the same X, so the gradient of X is a sum over columns, and backward adds the ranks'
partial sums: ∂X = Σ_r ∂Y_r W_rᵀ. Each rank computes its columns of ∂W alone: ∂W_r = Xᵀ ∂Y_r.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3.
**Sent.** In backward only: rows · inner elements from each rank to every other rank.
**Cost.** `minitrain.costs.matrix_product.by_columns`. A rank holds X, 1/n of W and Y, and their gradients.
Also called column-parallel, half of tensor parallelism (chapter 08); its backward sum is Megatron's f. In `nn.Linear`
the weight is stored as Wᵀ, so columns of W are rows of `weight`.
"""

from __future__ import annotations

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from minitrain.matrix_product.to_everyone import total


def hold(
    x: Float[Tensor, "rows inner"],
    w: Float[Tensor, "inner columns"],
    y: Float[Tensor, "rows columns"],
    rank: int,
    ranks: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `rank` holds of X, W and Y: everything, its columns, its columns."""
    # A slice of columns has gaps in memory, so it is copied together.
    my_w = w.tensor_split(ranks, dim=1)[rank].contiguous()
    my_y = y.tensor_split(ranks, dim=1)[rank].contiguous()
    return x.clone(), my_w.clone(), my_y.clone()


def forward(
    x: Float[Tensor, "rows inner"], w: Float[Tensor, "inner my_columns"], group: dist.ProcessGroup | None = None
) -> Float[Tensor, "rows my_columns"]:
    """This rank's columns of Y."""
    # A column of Y needs one column of W and all of X, which are here.
    return x @ w


def backward(
    grad_y: Float[Tensor, "rows my_columns"],
    x: Float[Tensor, "rows inner"],
    w: Float[Tensor, "inner my_columns"],
    group: dist.ProcessGroup | None = None,
) -> tuple[Float[Tensor, "rows inner"], Float[Tensor, "inner my_columns"]]:
    """The whole of ∂X, and this rank's columns of ∂W."""
    # From this rank's columns only, so it is one of n summands. Every rank sends its own to all others.
    grad_x = grad_y @ w.T
    grad_w = x.T @ grad_y
    return total(grad_x, group), grad_w


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
