"""Y = XW split by rows of W: each rank holds some rows of W and the same columns of X.

**Idea.** Every element of Y is a sum over the inner dim, and that dim is spread over ranks. So each rank makes a
summand of the whole Y, and forward adds them. Then all ranks hold Y, and with ∂Y each makes its own part of both
gradients: backward sends nothing.

**Source.** Shoeybi et al. 2019, "Megatron-LM", §3.

**What each rank holds.** X[rows, inner/n], W[inner/n, columns], Y[rows, columns], and gradients of the same shapes.

**What is sent, when and why.** Forward: Y = Σ_r X_r W_r, rows · columns elements, sent to every other rank. Backward:
∂X_r = ∂Y W_rᵀ and ∂W_r = X_rᵀ ∂Y. Nothing is sent.

**Cost.** `minitrain.costs.matrix_product.by_rows`.

**Also called.** Row-parallel, the other half of tensor parallelism (chapter 06); its forward sum is Megatron's g. In
`nn.Linear` the weight is stored as Wᵀ, so rows of W are columns of `weight`.
"""

from __future__ import annotations

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from minitrain.costs import matrix_product as costs
from minitrain.matrix_product.compare import Split, compare
from minitrain.matrix_product.to_everyone import total
from minitrain.runtime.claims import Claim
from minitrain.runtime.demo import run
from minitrain.runtime.world import World


def hold(
    x: Float[Tensor, "rows inner"],
    w: Float[Tensor, "inner columns"],
    y: Float[Tensor, "rows columns"],
    rank: int,
    ranks: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What `rank` holds of X, W and Y: its columns, its rows, everything."""
    my_x = x.tensor_split(ranks, dim=1)[rank].contiguous()  # a slice of columns has gaps: copy it together
    return my_x.clone(), w.tensor_split(ranks, dim=0)[rank].clone(), y.clone()


def forward(
    x: Float[Tensor, "rows my_inner"], w: Float[Tensor, "my_inner columns"], group: dist.ProcessGroup | None = None
) -> Float[Tensor, "rows columns"]:
    """The whole of Y."""
    summand = x @ w  # from this rank's part of the inner dim only
    return total(summand, group)  # every rank sends its summand to every other one


def backward(
    grad_y: Float[Tensor, "rows columns"],
    x: Float[Tensor, "rows my_inner"],
    w: Float[Tensor, "my_inner columns"],
    group: dist.ProcessGroup | None = None,
) -> tuple[Float[Tensor, "rows my_inner"], Float[Tensor, "my_inner columns"]]:
    """This rank's columns of ∂X, and its rows of ∂W."""
    grad_x = grad_y @ w.T
    grad_w = x.T @ grad_y
    return grad_x, grad_w


def demo(world: World, rows: int = 4, inner: int = 5, columns: int = 8) -> list[Claim]:
    """Splits Y = XW by rows of W; the table shows what a rank holds, what it sends, and that one device agrees.

    Args:
        rows: Rows of X and Y.
        inner: Columns of X, rows of W.
        columns: Columns of W and Y.
    """
    return compare(world, Split(hold, forward, backward, costs.by_rows), rows, inner, columns)


if __name__ == "__main__":
    run(demo)
