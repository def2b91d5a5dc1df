"""SM3: Adagrad that keeps one number for each row and each column in place of one for each parameter.

**Idea.** Adagrad divides g by the root of Σg², the sum over all steps so far. Every parameter lies in a row and in a
column. If each row has a number that no sum in the row exceeds, and each column, too, then a parameter's sum is at most
the smaller of its two numbers, ν.

**Source.** Anil, Gupta, Koren & Singer 2019, "Memory-efficient adaptive optimization", SM3-I and SM3-II, with the
slices along each dimension as sets. Their experiments add momentum, which takes 4 bytes more per parameter.
**Cost.** 4(r + c) bytes of states for a matrix of r × c; 4 per parameter of a vector, which is Adagrad itself.
Σg² ≤ ν of SM3-II ≤ ν of SM3-I, so SM3-II takes longer steps. Both need whole rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from minitrain.optimizers.adam import gradients


def sm3_i(mu: Sequence[Tensor], g: Tensor) -> Tensor:
    """ν by SM3-I: each set adds up the largest squares of its steps. Updates μ in place."""
    for dim, mu_r in enumerate(mu):
        mu_r.add_(largest(g * g, dim))
    return reduce(torch.minimum, mu)  # (r, c), of (r, 1) and (1, c)


def sm3_ii(mu: Sequence[Tensor], g: Tensor) -> Tensor:
    """ν by SM3-II: each set keeps the largest bound of its parameters. Updates μ in place."""
    # The bound of the steps before, then this parameter's own square and not the largest of its row.
    nu = reduce(torch.minimum, mu) + g * g  # (r, c)
    for dim, mu_r in enumerate(mu):
        mu_r.copy_(largest(nu, dim))
    return nu


def largest(x: Tensor, dim: int) -> Tensor:
    """The maximum over all other dimensions: of a matrix, (r, 1) for dim 0 and (1, c) for dim 1."""
    for other in range(x.dim()):
        if other != dim:
            x = x.amax(other, keepdim=True)
    return x


class SM3:
    """`SM3(model.parameters(), lr=0.1)`, and `step()` after each backward; `version` is `sm3_i` or `sm3_ii`."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.1, version=sm3_ii):
        self.parameters, self.lr, self.version = list(parameters), lr, version
        assert lr > 0 and all(w.dim() for w in self.parameters), f"invalid: {lr=}, or a parameter without dimensions"
        # A number for each index of each dimension.
        self.mu = [[largest(torch.zeros_like(w), dim) for dim in range(w.dim())] for w in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        for w, g, mu in zip(self.parameters, gradients(self.parameters), self.mu, strict=True):
            nu = self.version(mu, g)
            # A parameter that never had a gradient stays: the paper sets 0/0 to 0.
            w.sub_(self.lr * torch.where(nu > 0, g / nu.sqrt(), 0))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
