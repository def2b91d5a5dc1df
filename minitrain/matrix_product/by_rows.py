"""Y = XW split by rows of W: each rank holds some rows of W and the same columns of X.

**Idea.** Every element of Y is a sum over the inner dim, and that dim is spread over the ranks. So each rank computes a
partial sum of the whole Y, and forward adds them: Y = Σ_r X_r W_r. Then all ranks hold Y, and with ∂Y each computes its
own part of both gradients: ∂X_r = ∂Y W_rᵀ and ∂W_r = X_rᵀ ∂Y.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3.
**Sent.** In forward only: rows · columns elements from each rank to every other rank.
**Cost.** `minitrain.costs.matrix_product.by_rows`. A rank holds Y, 1/n of X and W, and their gradients.
Also called row-parallel, the other half of tensor parallelism (chapter 08); its forward sum is Megatron's g. In
`nn.Linear` the weight is stored as Wᵀ, so rows of W are columns of `weight`.
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
    """What `rank` holds of X, W and Y: its columns, its rows, everything."""
    # A slice of columns has gaps in memory, so it is copied together.
    my_x = x.tensor_split(ranks, dim=1)[rank].contiguous()
    return my_x.clone(), w.tensor_split(ranks, dim=0)[rank].clone(), y.clone()


def forward(
    x: Float[Tensor, "rows my_inner"], w: Float[Tensor, "my_inner columns"], group: dist.ProcessGroup | None = None
) -> Float[Tensor, "rows columns"]:
    """The whole of Y."""
    # From this rank's part of the inner dim only, so it is one of n summands. Every rank sends its own to all others.
    summand = x @ w
    return total(summand, group)


def backward(
    grad_y: Float[Tensor, "rows columns"],
    x: Float[Tensor, "rows my_inner"],
    w: Float[Tensor, "my_inner columns"],
    group: dist.ProcessGroup | None = None,
) -> tuple[Float[Tensor, "rows my_inner"], Float[Tensor, "my_inner columns"]]:
    """This rank's columns of ∂X, and its rows of ∂W."""
    # Every rank has the whole ∂Y, and needs no other rank.
    grad_x = grad_y @ w.T
    grad_w = x.T @ grad_y
    return grad_x, grad_w


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
