"""Column- and row-parallel linear layers: between them every rank has all tokens, outside of them only its own.

**Idea.** The matrices are divided as in tensor parallelism, and their products need all tokens. So g gathers the tokens
before the first, and ḡ sums the second's results and returns each token to its rank.
**Source.** Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2.
**Sent.** Forward an all-gather (column) and a reduce-scatter (row). Backward an all-gather (row) and a reduce-scatter
(column), and the column's input once more, because only this rank's tokens of it are kept: 5/4 of the bytes of
tensor parallelism.
**Cost.** 1/n of the weights and of the activations on each rank; all tokens of X only while they are multiplied.
The full form, `minitrain.sequence_parallel.full.linear`, adds sending during products, several weights that share one
gather, keeping the gathered input, sums over ranks of a bias's gradient once per step, autocast, and checks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.comm.messages import Group, place
from minitrain.sequence_parallel.mappings import g, g_bar


class ColumnFromSequence(nn.Module):
    """X Wᵀ + b of all tokens, this rank's columns of it; each rank draws all weights and keeps its part."""

    def __init__(self, in_features: int, out_features: int, group: Group = None):
        super().__init__()
        rank, ranks = place(group)
        assert out_features % ranks == 0, f"out_features={out_features} cannot be divided over {ranks} ranks"
        whole, self.group = nn.Linear(in_features, out_features), group
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks)[rank].clone())  # [out/n, in]
        self.bias = nn.Parameter(whole.bias.detach().chunk(ranks)[rank].clone())  # [out/n]

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq/n, in]
        return Column.apply(x, self.weight, self.bias, self.group)  # [batch, seq, out/n]


class RowToSequence(nn.Module):
    """X Wᵀ + b of this rank's tokens, summed over the ranks, each of which has some columns of X."""

    def __init__(self, in_features: int, out_features: int, group: Group = None):
        super().__init__()
        rank, ranks = place(group)
        assert in_features % ranks == 0, f"in_features={in_features} cannot be divided over {ranks} ranks"
        whole, self.group = nn.Linear(in_features, out_features), group
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks, dim=1)[rank].clone())  # [out, in/n]
        self.bias = nn.Parameter(whole.bias.detach().clone())  # [out]

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, in/n]
        return Row.apply(x, self.weight, self.bias, self.group)  # [batch, seq/n, out]


class Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Group) -> Tensor:
        ctx.group = group
        # Only this rank's tokens are kept until backward.
        ctx.save_for_backward(x, weight)
        # All ranks' tokens to every rank.
        return F.linear(g(x, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad_y = ctx.saved_tensors, gradients[0]  # [batch, seq, out/n]
        # dX = Σ_r dY_r W_r: every rank has a partial sum for all tokens, and gets the sum for its own.
        grad_x = g_bar(grad_y @ weight, ctx.group)
        # dW needs all tokens of x, which are gathered once more.
        x, grad_y = g(x, ctx.group).flatten(0, 1), grad_y.flatten(0, 1)  # [batch · seq, …]
        return grad_x, grad_y.T @ x, grad_y.sum(0), None


class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: Group) -> Tensor:
        ctx.group = group
        ctx.save_for_backward(x, weight)
        # Every rank has a partial sum for all tokens, and gets the sum for its own; then, once, the bias.
        return g_bar(F.linear(x, weight), group) + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # Every rank's tokens of dY to all. So db, too, is that of all tokens, and needs no sum over ranks.
        grad_y = g(gradients[0], ctx.group)  # [batch, seq, out]
        grad_x, grad_y = grad_y @ weight, grad_y.flatten(0, 1)  # [batch, seq, in/n]
        return grad_x, grad_y.T @ x.flatten(0, 1), grad_y.sum(0), None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
