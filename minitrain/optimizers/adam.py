"""Adam: each parameter's step is its mean gradient, divided by the root of its mean squared gradient.

**Idea.** Two running means for each parameter: m of the gradient g, and v of g². Then m/√v is about ±1 where gradients
agree and about 0 where they don't, however large they are. So the learning rate α is about what a parameter moves.

**Source.** Kingma & Ba 2015, "Adam", algorithm 1: ε is added after the root and after the bias correction. (TensorFlow
adds it before the correction, the paper's ε̂.) No weight decay; AdamW (Loshchilov & Hutter 2019) adds θ ← θ − αλθ.
**Cost.** m and v, 8 bytes of states per parameter in float32.
Adam works element by element, so ZeRO may cut its parameters anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class Adam:
    """`Adam(model.parameters(), lr=0.001)`, and `step()` after each backward."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        assert lr > 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas), f"invalid: {lr=}, {betas=}, {eps=}"
        self.parameters, self.lr, self.betas, self.eps = list(parameters), lr, betas, eps
        self.m = [torch.zeros_like(theta) for theta in self.parameters]
        self.v = [torch.zeros_like(theta) for theta in self.parameters]
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:
        g = gradients(self.parameters)
        self.t += 1
        for theta, g_t, m, v in zip(self.parameters, g, self.m, self.v, strict=True):
            # Both means are updated in place; the step takes what they are without their bias.
            m_hat, v_hat = moments(m, v, g_t, self.betas, self.t)
            # ε keeps a parameter in its place that never had a gradient: 0 / (0 + ε).
            theta.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))


def gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Each parameter's gradient; asked for before the first parameter changes, so that no step is done by halves."""
    assert len(set(parameters)) == len(parameters), "a parameter is listed twice, and would be stepped twice"
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert len(found) == len(parameters), "a parameter has no gradient; call backward before step"
    return found


def moments(m: Tensor, v: Tensor, g: Tensor, betas: Sequence[float], t: int) -> tuple[Tensor, Tensor]:
    """Update both running means in place; returns them without the bias towards 0, where they began."""
    beta_1, beta_2 = betas
    m.mul_(beta_1).add_(g, alpha=1 - beta_1)
    v.mul_(beta_2).addcmul_(g, g, value=1 - beta_2)
    # The weights of the t gradients so far add up to 1 − βᵗ, not to 1.
    return m / (1 - beta_1**t), v / (1 - beta_2**t)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
