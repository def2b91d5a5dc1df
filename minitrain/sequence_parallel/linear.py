"""Column- and row-parallel linear layers: between the two every rank has all tokens, outside of them only its own.

**Idea.** The matrices are divided as in tensor parallelism, and their products need all tokens. So g all-gathers the
tokens before the first product. After the second, ḡ sums the partial results and returns each token to its rank.
**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2.
**Sent.** Forward: an all-gather (column) and a reduce-scatter (row). Backward: an all-gather (row) and a reduce-scatter
(column). Backward also gathers the column's input once more, since each rank has kept only its own tokens of it. In
total 5/4 of the bytes of tensor parallelism, if input and output are equally wide.
**Cost.** Each rank holds 1/n of the weights and of the activations, and all tokens of X only during a product.
The full form, `minitrain.sequence_parallel.full.linear`, adds overlap of messages and products, weights that share one
gather, keeping the gathered input, bias gradients that are summed over ranks once per step, autocast, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size
from minitrain.sequence_parallel.mappings import g, g_bar


class ColumnFromSequence(nn.Module):
    """[batch, seq/n, in], this rank's tokens, to [batch, seq, out/n], its part of the output features of all tokens."""

    def __init__(self, in_features: int, out_features: int, group: Group = None):
        super().__init__()
        rank, ranks = rank_and_size(group)
        assert out_features % ranks == 0, f"out_features={out_features} cannot be divided over {ranks} ranks"
        self.group = group
        # All ranks draw the whole matrix: with the same seed, the weights are those of one device.
        whole = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks)[rank].clone())  # [out/n, in]
        self.bias = nn.Parameter(whole.bias.detach().chunk(ranks)[rank].clone())  # [out/n]
        # As in tensor parallelism: `clip_grad_norm` must know which gradients differ between ranks.
        for parameter in self.parameters():
            parameter.tensor_parallel_dim = 0  # type: ignore[missing-attribute]

    def forward(self, x: Tensor) -> Tensor:
        return Column.apply(x, self.weight, self.bias, self.group)  # [batch, seq, out/n]


class RowToSequence(nn.Module):
    """[batch, seq, in/n], this rank's part of the input features of all tokens, to [batch, seq/n, out], its tokens."""

    def __init__(self, in_features: int, out_features: int, group: Group = None):
        super().__init__()
        rank, ranks = rank_and_size(group)
        assert in_features % ranks == 0, f"in_features={in_features} cannot be divided over {ranks} ranks"
        self.group = group
        whole = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks, dim=1)[rank].clone())  # [out, in/n]
        vars(self.weight)["tensor_parallel_dim"] = 1
        # Not divided: its gradient is complete on every rank.
        self.bias = nn.Parameter(whole.bias.detach().clone())  # [out]

    def forward(self, x: Tensor) -> Tensor:
        return Row.apply(x, self.weight, self.bias, self.group)  # [batch, seq/n, out]


class Column(torch.autograd.Function):
    """Y = g(X) Wᵀ + b, written as a Function so that autograd does not keep g(X)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # Only this rank's tokens, [batch, seq/n, in], are kept until backward.
        ctx.save_for_backward(x, weight)
        # g: every rank sends its tokens, and receives all tokens.
        return F.linear(g(x, group), weight, bias)  # [batch, seq, out/n]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight = ctx.saved_tensors
        # dX = Σ_r dY_r W_r. Every rank sends a partial sum for all tokens, and receives the sum for its own.
        grad_x = g_bar(grad_y @ weight, ctx.group)  # [batch, seq/n, in]
        # dW = dYᵀ X needs all tokens of X, so they are gathered once more.
        x = g(x, ctx.group).flatten(0, 1)  # [batch · seq, in]
        grad_y = grad_y.flatten(0, 1)  # [batch · seq, out/n]
        return grad_x, grad_y.T @ x, grad_y.sum(0), None


class Row(torch.autograd.Function):
    """Y = ḡ(X Wᵀ) + b, written as a Function so that backward has dY of all tokens for b, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Group) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(x, weight)
        # ḡ: every rank sends a partial sum for all tokens, and receives the sum for its own.
        y = g_bar(F.linear(x, weight), group)  # [batch, seq/n, out]
        # **After the sum**, because before it the bias would be added n times.
        return y + bias

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[bad-override]
        x, weight = ctx.saved_tensors
        # g: every rank sends dY of its tokens, and receives dY of all. So db needs no sum over ranks.
        grad_y = g(grad_y, ctx.group)  # [batch, seq, out]
        grad_x = grad_y @ weight  # [batch, seq, in/n]
        x, grad_y = x.flatten(0, 1), grad_y.flatten(0, 1)  # [batch · seq, in/n], [batch · seq, out]
        return grad_x, grad_y.T @ x, grad_y.sum(0), None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
