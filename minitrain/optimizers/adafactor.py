"""Adafactor: of a matrix's mean squared gradients, only the sums of rows and of columns are kept.

**Idea.** V ≈ R Cᵀ / ΣR is the matrix of rank one that has V's row sums R and column sums C. There is no momentum. A
step's length follows the parameters' own size (relative step), and an update that is unusually large is clipped.

**Source.** Shazeer & Stern 2018, algorithms 4 (matrices) and 5 (vectors), with the hyperparameters of algorithm 6.
**Cost.** 4(r + c) bytes of states for a matrix of r × c; 4 per parameter for other shapes, which are not factored.
`torch.optim.Adafactor` differs in ε₁: it doesn't add ε₁ to g², but keeps V above ε₁² and R's mean above ε₁, by default
the dtype's precision. Its `lr` is the bound of ρ, as here; others (fairseq) take a given `lr` as ρ itself.
The full form, `minitrain.optimizers.full.adafactor`, is torch's, also on ZeRO's shards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.optimizers.adam import gradients


class Adafactor:
    """`Adafactor(model.parameters())`, and `step()` after each backward.

    Args:
        parameters: Of any shape.
        lr: The largest relative step ρ.
        eps: ε₁, added to each square, and ε₂, the smallest size that a tensor counts as having.
        d: The largest root mean square of an update.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-2, eps: tuple[float, float] = (1e-30, 1e-3), d: float = 1.0
    ):
        assert lr > 0 and d > 0 and min(eps) >= 0, f"invalid: {lr=}, {eps=}, {d=}"
        self.parameters, self.lr, self.eps, self.d, self.t = list(parameters), lr, eps, d, 0
        # R and C of a matrix, V of anything else.
        self.states = [
            (x.new_zeros(x.shape[0]), x.new_zeros(x.shape[1])) if x.dim() == 2 else (torch.zeros_like(x),)
            for x in self.parameters
        ]

    @torch.no_grad()
    def step(self) -> None:
        g = gradients(self.parameters)
        self.t += 1
        # 0 in the first step, so no bias needs correcting; later means reach farther and farther back.
        beta_2 = 1 - self.t**-0.8
        rho = min(self.lr, self.t**-0.5)
        for x, g_t, state in zip(self.parameters, g, self.states, strict=True):
            # Relative to the tensor's own size, taken before it moves; ε₂ lets a tensor of zeros begin.
            alpha = max(self.eps[1], rms(x)) * rho
            u = g_t / second_moment(state, g_t * g_t + self.eps[0], beta_2).sqrt()
            # While V lags behind growing gradients, u is large: shorten it to d.
            x.sub_(alpha / max(1, rms(u) / self.d) * u)


def second_moment(state: tuple[Tensor, ...], square: Tensor, beta_2: float) -> Tensor:
    """V, after the running means of its row and column sums have been updated in place."""
    # Rows are summed over dim 1, columns over dim 0.
    sums = (square.sum(1), square.sum(0)) if len(state) == 2 else (square,)
    for mean, each in zip(state, sums, strict=True):
        mean.mul_(beta_2).add_(each, alpha=1 - beta_2)
    if len(state) == 1:
        return state[0]
    r, c = state
    return torch.outer(r, c) / r.sum()  # (r, c)


def rms(x: Tensor) -> float:
    """Root of the mean square."""
    return x.square().mean().sqrt().item()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
