"""f and g: where activations enter tensor-parallel work, and where they leave it.

**Idea.** All ranks enter with the same x, and each uses it for its own part of the model. Nothing is sent forward, but
x was used n times, so its gradient is a sum over ranks (f). They leave with one partial sum of y each. Forward adds
these up, and backward sends nothing, because y's gradient is the gradient of every partial sum (g).
**Source.** Shoeybi et al. 2019, "Megatron-LM", §3, figure 3. In Megatron-LM's code
`copy_to_tensor_model_parallel_region` and `reduce_from_tensor_model_parallel_region`.
**Sent.** f: one all-reduce of x's gradient in backward. g: one all-reduce of y in forward.
**Cost.** The all-reduce, which is waited for, and a copy of what goes into it.
The full form, `minitrain.tensor_parallel.full.mappings`, adds split and all-gather along the last dim, any set of
collectives, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # A view, because autograd takes a Function that returns its input itself for an in-place one.
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # Every rank used x, so its gradient is the sum of all ranks' gradients: g.
        return Reduce.apply(gradient, ctx.group), None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # A copy, because the all-reduce works in place and others may read x.
        total = x.clone(memory_format=torch.contiguous_format)
        # Every rank brings its partial sum, and gets the sum of all.
        all_reduce(total, group).wait()
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[bad-override]
        # Each partial sum has the gradient of the sum: f.
        return Copy.apply(gradient, ctx.group), None


def copy_to_parallel(x: Tensor, group: Group = None) -> Tensor:
    """f: x as it is, the same on all ranks; all-reduce in backward."""
    return Copy.apply(x, group)


def reduce_from_parallel(x: Tensor, group: Group = None) -> Tensor:
    """g: the sum of all ranks' x; the gradient as it is in backward."""
    return Reduce.apply(x, group)


# The paper's names.
f, g = copy_to_parallel, reduce_from_parallel


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
