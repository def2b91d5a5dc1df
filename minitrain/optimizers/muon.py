"""Muon: a matrix's step is its momentum, with all singular values made about 1.

**Idea.** Of G = USVᵀ take UVᵀ, a step of the same length in every direction that the gradients have. No SVD is needed:
the polynomial aX + b(XXᵀ)X + c(XXᵀ)²X acts on each singular value by itself; applied five times, it maps each from
[0.003, 1] into [0.68, 1.21].

**Source.** Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks": coefficients, bfloat16, and
the root √max(1, r/c) for a weight of r rows and c columns. Decoupled weight decay from Liu et al. 2025, "Muon is
scalable for LLM training", §2.2, who take 0.2 √max(r, c) instead of that root. `torch.optim.Muon` with its defaults
computes the same.
**Cost.** The momentum, 4 bytes of states per parameter in float32; 5 · (4r²c + 2r³) FLOPs per step, r the shorter side.
Embeddings, head and vectors are left to Adam. Muon needs whole matrices; the full form, in
`minitrain.optimizers.full.muon`, gathers them from ZeRO's flat shards, and includes Adam.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.optimizers.adam import gradients


def newton_schulz(g: Tensor, steps: int = 5, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """About UVᵀ of g = USVᵀ."""
    # XXᵀ is smaller if X is wide.
    tall = g.shape[0] > g.shape[1]
    x = g.to(dtype).T if tall else g.to(dtype)  # (r, c), r ≤ c
    # No singular value exceeds the root of the sum of their squares, so all are at most 1 now.
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = 3.4445, -4.7750, 2.0315  # the slope at 0 is large, so that small singular values grow fast
    for _ in range(steps):
        # addmm(M, P, Q, beta, alpha) is βM + αPQ, rounded once.
        gram = x @ x.T  # G = XXᵀ, (r, r)
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)  # P = bG + cG²
        x = torch.addmm(x, polynomial, x, beta=a)  # X = aX + PX
    return x.T if tall else x


class Muon:
    """`Muon(matrices, lr=0.02)`, and `step()` after each backward."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.bfloat16,
    ):
        self.parameters, self.lr, self.weight_decay = list(parameters), lr, weight_decay
        self.momentum, self.dtype = momentum, dtype
        assert lr > 0 and weight_decay >= 0 and 0 <= momentum < 1, f"invalid: {lr=}, {weight_decay=}, {momentum=}"
        assert all(weight.dim() == 2 for weight in self.parameters), "Muon steps matrices; give all others to Adam"
        self.averages = [torch.zeros_like(weight) for weight in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        for weight, gradient, average in zip(
            self.parameters, gradients(self.parameters), self.averages, strict=True
        ):  # fmt: skip
            average.lerp_(gradient, 1 - self.momentum)  # μB + (1 − μ)G
            # Nesterov's momentum: once more on the way to where the average will be.
            update = newton_schulz(gradient.lerp(average, self.momentum), dtype=self.dtype)
            weight.mul_(1 - self.lr * self.weight_decay)
            # A tall matrix has fewer singular values than rows; the factor makes up for that.
            weight.add_(update, alpha=-self.lr * max(1, weight.shape[0] / weight.shape[1]) ** 0.5)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
