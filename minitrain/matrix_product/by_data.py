"""Y = XW split by data: each rank takes some rows of X and holds the whole of W.

**Idea.** A row of Y needs one row of X and all of W. So each rank computes its rows alone: Y_r = X_r W and ∂X_r = ∂Y_r
Wᵀ. The gradient of W is a sum over all rows, and the rows are spread over the ranks, so backward adds the ranks'
partial sums: ∂W = Σ_r X_rᵀ ∂Y_r.

**Source.** Li et al. 2020, "PyTorch Distributed: experiences on accelerating data parallel training", §2.2.
**Sent.** In backward only: inner · columns elements from each rank to every other rank.
**Cost.** `minitrain.costs.matrix_product.by_data`. A rank holds W, 1/n of X and Y, and their gradients.
Also called data parallelism (chapter 02), where W is a whole model.
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
    """What `rank` holds of X, W and Y: its rows, everything, its rows."""
    # tensor_split also cuts what does not divide: the first ranks then have a row more.
    return x.tensor_split(ranks, dim=0)[rank].clone(), w.clone(), y.tensor_split(ranks, dim=0)[rank].clone()


def forward(
    x: Float[Tensor, "my_rows inner"], w: Float[Tensor, "inner columns"], group: dist.ProcessGroup | None = None
) -> Float[Tensor, "my_rows columns"]:
    """This rank's rows of Y."""
    # A row of Y needs one row of X and all of W, which are here.
    return x @ w


def backward(
    grad_y: Float[Tensor, "my_rows columns"],
    x: Float[Tensor, "my_rows inner"],
    w: Float[Tensor, "inner columns"],
    group: dist.ProcessGroup | None = None,
) -> tuple[Float[Tensor, "my_rows inner"], Float[Tensor, "inner columns"]]:
    """This rank's rows of ∂X, and the whole of ∂W."""
    grad_x = grad_y @ w.T
    # From this rank's rows only, so it is one of n summands. Every rank sends its own to all others.
    grad_w = x.T @ grad_y
    return grad_x, total(grad_w, group)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
