"""The products of `linear` as autograd Functions: what is computed, what is sent, and which of it at the same time.

The derivation is in `minitrain.tensor_parallel.full.linear`. Written as Functions, and not put together from `F.linear`
and the operators of `mappings`, for two reasons. Backward of a column-parallel product can start the all-reduce of the
input's gradient and compute the weight's meanwhile, which autograd would do one after the other. And where several
products take the same input, as query, key and value do, they share that all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.collectives.full import native
from minitrain.tensor_parallel.full.checks import place
from minitrain.tensor_parallel.full.mappings import Collectives


def column_parallel(
    x: Float[Tensor, "*batch in"],
    weights: Sequence[Float[Tensor, "_ in"]],
    biases: Sequence[Float[Tensor, " _"] | None],
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """x Wᵀ + b for each pair of W and b; the gradient of x is summed over weights and ranks, in one all-reduce.

    Args:
        x: The same on all ranks.
        weights: This rank's rows of one or more weights (columns of A).
        biases: As many, each None where there is none.
        group: The ranks that hold the weights together; None means everyone.
        collectives: Who carries the gradient.
    """
    x, *tensors = as_autocast(x, *weights, *biases)
    return _ColumnParallel.apply(group, collectives, x, *tensors)


def row_parallel(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None,
    group: dist.ProcessGroup | None = None,
    collectives: Collectives = native,
    *,
    check: bool | None = None,
) -> Float[Tensor, "*batch out"]:
    """The sum over ranks of x Wᵀ, in one all-reduce, and then b.

    Args:
        x: This rank's part of the input.
        weight: The columns that go with it (rows of A).
        bias: Whole, the same on all ranks.
        group: The ranks that hold the weight together; None means everyone.
        collectives: Who carries the output.
        check: Compare shape and dtype of the output across ranks first. None: in demos and notebooks only.
    """
    place(group)
    x, weight, bias = as_autocast(x, weight, bias)
    return _RowParallel.apply(group, collectives, check, x, weight, bias)


class _ColumnParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup | None, collectives: Collectives, x: Tensor, *tensors: Any
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        ctx.group, ctx.collectives = group, collectives
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, *weights = ctx.saved_tensors
        _, _, input_wanted, *wanted = ctx.needs_input_grad
        grads_y = [rows(gradient) for gradient in gradients]
        grad_x, sent = None, None
        if input_wanted:
            grad_x = grads_y[0] @ weights[0]  # dX = dY Aᵀ, this rank's summand
            for grad_y, weight in zip(grads_y[1:], weights[1:], strict=True):
                torch.addmm(grad_x, grad_y, weight, out=grad_x)
            # Every rank used x, so its gradient is the sum of the ranks' summands: the one all-reduce. It is only
            # started here, and travels while the gradients of the weights are computed.
            sent = ctx.collectives.all_reduce(grad_x, ctx.group, check=False)
        grads_w = [dy.T @ rows(x) if needed else None for dy, needed in zip(grads_y, wanted, strict=False)]
        grads_b = [dy.sum(0) if needed else None for dy, needed in zip(grads_y, wanted[len(weights) :], strict=True)]
        if grad_x is not None and sent is not None:
            sent.wait()
            grad_x = grad_x.view_as(x)
        return None, None, grad_x, *grads_w, *grads_b


class _RowParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: dist.ProcessGroup | None,
        collectives: Collectives,
        check: bool | None,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)
        # Every rank has made a summand of y from its part of x: the one all-reduce.
        collectives.all_reduce(y, group, check=check).wait()
        return y if bias is None else y.add_(bias)  # once, after the sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight = ctx.saved_tensors
        *_, input_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        grad_y = rows(gradients[0])
        grad_x = (grad_y @ weight).view_as(x) if input_wanted else None  # this rank's part of dX, whole as it is
        grad_w = grad_y.T @ rows(x) if weight_wanted else None
        return None, None, None, grad_x, grad_w, grad_y.sum(0) if bias_wanted else None


def rows(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "rows width"]:
    """All leading dims as one, as the products of backward want it."""
    return x.reshape(-1, x.shape[-1])


def as_autocast(x: Tensor, *tensors: Tensor | None) -> list[Any]:
    """The dtypes that autocast would give a product; it does not look into an autograd Function's backward."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return [x, *tensors]
    dtype = torch.get_autocast_dtype(kind)
    return [None if tensor is None else tensor.to(dtype) for tensor in (x, *tensors)]
