"""f and g: the two operators through which activations enter tensor-parallel work, and leave it.

**Idea.** Every rank enters with the same x and uses it for its own part of the model. Forward sends nothing; but x is
used n times, so in backward its gradient is a sum over ranks (f). Every rank leaves with a partial sum of y. Forward
adds these up; backward sends nothing, because the gradient of y is also the gradient of each partial sum (g).
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, figure 3. Megatron-LM's code calls them
`copy_to_tensor_model_parallel_region` (f) and `reduce_from_tensor_model_parallel_region` (g).
**Sent.** f: one all-reduce of x's gradient in backward. g: one all-reduce of y in forward.
**Cost.** The time of the all-reduce, since nothing is computed meanwhile, and a copy of the tensor that it adds up.
The full form, `minitrain.tensor_parallel.full.mappings`, adds split and all-gather along the last dim, a choice of
collectives, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


def copy_to_parallel(x: Tensor, group: Group = None) -> Tensor:
    """f: returns x, which is the same on all ranks; backward all-reduces the gradient."""
    return Copy.apply(x, group)


def reduce_from_parallel(x: Tensor, group: Group = None) -> Tensor:
    """g: all-reduces x, of which each rank has a partial sum; backward returns the gradient as it is."""
    return Reduce.apply(x, group)


# The paper's names.
f, g = copy_to_parallel, reduce_from_parallel


class Copy(torch.autograd.Function):
    """f. Its backward is g's forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # A view, so nothing is copied. PyTorch would make the same view if x itself were returned.
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # Every rank used x, so the gradients of all ranks are added up.
        return Reduce.apply(gradient, ctx.group), None


class Reduce(torch.autograd.Function):
    """g. Its backward is f's forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # The all-reduce overwrites its tensor, and x may be in use elsewhere, so we reduce a copy.
        y = x.clone(memory_format=torch.contiguous_format)
        # Every rank sends its partial sum, and receives the sum over all ranks.
        all_reduce(y, group).wait()
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # y is a plain sum, so each partial sum has the gradient of y. Nothing is sent.
        return Copy.apply(gradient, ctx.group), None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
