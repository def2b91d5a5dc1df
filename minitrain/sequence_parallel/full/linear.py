"""The full form of `minitrain.sequence_parallel.linear` adds sending during products, and gathering once for several.

| `keep_gathered` | column-parallel keeps for backward | and sends in backward |
|---|---|---|
| False, the paper's way | `[batch, seq/tp, in]` | all-gather of x once more, reduce-scatter of dX |
| True | `[batch, seq, in]` | reduce-scatter of dX |

Open `sequence_parallel/full/mappings.py` and `tensor_parallel/full/linear.py` first.

A row-parallel bias is marked as partial: each rank has db from its own tokens only, and
`minitrain.tensor_parallel.full.parameter_layout.sum_partial_gradients` adds these up once per step.

**Cost.** `minitrain.costs.sequence_parallel.layer_traffic`. Gathering again, as Megatron-LM does, adds a quarter; in
PyTorch DTensor `ColwiseParallel(input_layouts=Shard(1))` keeps the gathered input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle
from minitrain.sequence_parallel.full.mappings import own_tokens, start_gather, start_reduce_scatter
from minitrain.tensor_parallel.full.checks import check_split
from minitrain.tensor_parallel.full.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    as_autocast,
    input_gradient,
    rows,
    weight_gradients,
)
from minitrain.tensor_parallel.full.parameter_layout import mark_partial


class _ColumnFromSequence(torch.autograd.Function):
    """Y_r = X A_r of all tokens, for one or more weights; as many biases follow, each None where there is none."""

    @staticmethod
    def forward(ctx: Any, comm: Comm, keep_gathered: bool, x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        weights, biases = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        ctx.comm, ctx.kept_gathered = comm.unchecked, keep_gathered
        # Every rank's tokens to all, once for all weights.
        whole = start_gather(x, comm).wait()  # [seq, batch, in]
        assert whole is not None
        # Without `keep_gathered`, the paper's way: the shard is kept, and gathered again in backward.
        ctx.save_for_backward(whole if keep_gathered else x, *weights)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, *weights = ctx.saved_tensors
        _, _, input_wanted, *wanted = ctx.needs_input_grad
        gathering = Handle((), x)
        if not ctx.kept_gathered and any(wanted[: len(weights)]):
            # Every rank's tokens to all, once more: they travel while dX is computed, which does not need them.
            gathering = start_gather(x, ctx.comm)
        grads_y = [rows(gradient) for gradient in gradients]  # each [seq · batch, out/t]
        grad_x, reducing = None, None
        if input_wanted:
            grad_x = input_gradient(grads_y, weights).view(*gradients[0].shape[:2], -1)  # [seq, batch, in]
            # The sum over ranks of all tokens' gradients, to each rank for its own tokens: it is under way while dA is
            # computed, which does not need it.
            reducing = start_reduce_scatter(grad_x, ctx.comm)
        whole = gathering.wait()
        assert whole is not None
        grads = weight_gradients(grads_y, whole, wanted)
        if grad_x is not None and reducing is not None:
            grad_x = own_tokens(reducing, grad_x)
        return None, None, grad_x, *grads


class _RowToSequence(torch.autograd.Function):
    """Y = Σ_r X_r A_r of this rank's tokens, and then b, whose gradient is a partial sum."""

    @staticmethod
    def forward(ctx: Any, comm: Comm, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.comm = comm.unchecked
        x = x.transpose(0, 1).contiguous()  # [seq, batch, in]
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)
        # The sum over ranks of y, to each rank for its own tokens; the bias once, after the sum.
        return own_tokens(start_reduce_scatter(y, comm), y, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight = ctx.saved_tensors
        _, input_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        # Every rank's part of dY to all: both products need all tokens. Meanwhile db, from this rank's tokens only.
        gathering = start_gather(gradients[0], ctx.comm)
        grad_b = rows(gradients[0]).sum(0) if bias_wanted else None
        whole = gathering.wait()
        assert whole is not None
        grad_y = rows(whole)  # [seq · batch, out]
        grad_x = (grad_y @ weight).view_as(x).transpose(0, 1) if input_wanted else None  # [batch, seq, in]
        grad_w = grad_y.T @ rows(x) if weight_wanted else None
        return None, grad_x, grad_w, grad_b


def column_from_sequence(
    x: Float[Tensor, "batch shard in"],
    weights: Sequence[Float[Tensor, "_ in"]],
    biases: Sequence[Float[Tensor, " _"] | None],
    comm: Comm,
    keep_gathered: bool,
) -> tuple[Float[Tensor, "seq batch _"], ...]:
    """x Wᵀ + b of all tokens, for each pair, with the sequence first; x is gathered once for all of them."""
    return _ColumnFromSequence.apply(comm, keep_gathered, *as_autocast(x, *weights, *biases))


class ColumnFromSequence(ColumnParallelLinear):
    """`ColumnParallelLinear` that takes this rank's tokens; arguments, weights and errors are those of its base.

    Attributes:
        keep_gathered: Keep all tokens of the input for backward, and do not gather them again. False at first.
    """

    keep_gathered: bool = False

    @classmethod
    def of(cls, layer: ColumnParallelLinear, keep_gathered: bool = False) -> ColumnFromSequence:
        """The same layer, with the very same parameters, between sequence shards."""
        with torch.device("meta"):
            made = cls(layer.in_features, layer.out_features, layer.bias is not None, layer.comm, shards=layer.shards)
        made.weight, made.bias, made.keep_gathered = layer.weight, layer.bias, keep_gathered
        made.mark_parameters()
        return made

    def forward(self, x: Float[Tensor, "batch shard in_features"]) -> Float[Tensor, "batch seq out"]:
        """This rank's outputs for all tokens, `[batch, seq, out/t]`, of its own tokens, `[batch, seq/tp, in]`.

        Raises:
            ValueError: With checking, if shape or dtype of x differ between ranks.
        """
        return self.together(x)[0]

    def together(
        self, x: Float[Tensor, "batch shard in_features"], *others: ColumnParallelLinear
    ) -> tuple[Float[Tensor, "batch seq _"], ...]:
        """The outputs of this layer and of others with the same input, which is gathered once for all of them."""
        layers = (self, *others)
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        outputs = column_from_sequence(x, weights, biases, self.comm, self.keep_gathered)
        return tuple(y.transpose(0, 1) for y in outputs)  # each [batch, seq, out/t]


class RowToSequence(RowParallelLinear):
    """`RowParallelLinear` that returns this rank's tokens; arguments, weights and errors are those of its base."""

    @classmethod
    def of(cls, layer: RowParallelLinear) -> RowToSequence:
        """The same layer, with the very same parameters, between sequence shards."""
        with torch.device("meta"):
            made = cls(layer.in_features, layer.out_features, layer.bias is not None, layer.comm)
        made.weight, made.bias = layer.weight, layer.bias
        made.mark_parameters()
        return made

    def mark_parameters(self) -> None:
        super().mark_parameters()
        if self.bias is not None:
            mark_partial(self.bias)  # each rank adds it to its own tokens only

    def forward(self, x: Float[Tensor, "batch seq in"]) -> Float[Tensor, "batch shard out_features"]:
        """The output of this rank's tokens, `[batch, seq/tp, out]`, of its part of all tokens, `[batch, seq, in/t]`.

        Raises:
            ValueError: The sequence does not divide by the ranks; with checking also if shapes differ between ranks.
        """
        check_split("seq", x.shape[1], self.ranks)
        return _RowToSequence.apply(self.comm, *as_autocast(x, self.weight, self.bias))
