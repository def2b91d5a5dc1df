"""Shared by the demos of local SGD: losses ½ Σ aᵣ (θ − cᵣ)², of which each rank has one, and all can be solved by hand.

Curvatures are between 0.5 and 0.95, centers between −1 and 1, and η is 1. So a step shrinks any difference to half of
it or less, and what rounding adds is not amplified: each of T steps adds at most some roundings of numbers below 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import local_sgd as costs
from minitrain.lessons.rows import Rows

ELEMENTS, LR = 31, 1.0  # a number of elements that neither 2 nor 3 nor 4 divides
SHAPES = ((3, 5), (16,))


class Quadratic(nn.Module):
    """One rank's loss, in float64; all ranks begin at θ = 0."""

    def __init__(self, world: World, rank: int):
        super().__init__()
        self.thetas = nn.ParameterList(
            [nn.Parameter(torch.zeros(shape, dtype=torch.float64, device=world.device)) for shape in SHAPES]
        )
        self.curvatures, self.centers = (each.to(world.device) for each in drawn(rank))

    def forward(self) -> Tensor:
        return (self.curvatures * (flat(self) - self.centers).square()).sum() / 2


def drawn(rank: int) -> tuple[Tensor, Tensor]:
    """aᵣ between 0.5 and 0.95, and cᵣ between −1 and 1."""
    generator = torch.Generator().manual_seed(rank)
    a, c = torch.rand(2, ELEMENTS, generator=generator, dtype=torch.float64)
    return 0.5 + 0.45 * a, 2 * c - 1


def flat(module: nn.Module) -> Tensor:
    """All parameters, one after the other."""
    return torch.cat([each.flatten() for each in module.parameters()])


def train(model: Any, steps: int) -> Tensor:
    """Take steps of SGD, each followed by what `model` does then; returns all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for _ in range(steps):
        optimizer.zero_grad()
        model().backward()
        if hasattr(model, "synchronize"):
            model.synchronize()
        optimizer.step()
        if hasattr(model, "after_step"):
            model.after_step()
    return flat(model.module).detach()


def alone(world: World, ranks: int, steps: int, every: int, lr: float, momentum: float) -> Tensor:
    """One device that goes through all ranks' H steps in turn, and then steps as SGD with Nesterov momentum does.

    Every step is a line of arithmetic, without optimizers of torch and without the small forms.
    """
    theta, pairs = torch.zeros(ELEMENTS, dtype=torch.float64), [drawn(rank) for rank in range(ranks)]
    velocity = torch.zeros_like(theta)
    for _ in range(steps // every):
        ends = []
        for a, c in pairs:
            own = theta.clone()
            for _ in range(every):
                own = own - LR * a * (own - c)
            ends.append(own)
        gap = theta - sum(ends) / ranks
        velocity = momentum * velocity + gap
        theta = theta - lr * (gap + momentum * velocity)
    return theta.to(world.device)


def settled(ranks: Sequence[Sequence[int]], every: int) -> Tensor:
    """Where averaging ends by theory, for groups of ranks that learn as one."""
    curvatures, centers = zip(*(as_one(group) for group in ranks), strict=True)
    columns = (
        costs.settles_at([float(a[j]) for a in curvatures], [float(c[j]) for c in centers], LR, every)
        for j in range(ELEMENTS)
    )
    return torch.tensor(list(columns), dtype=torch.float64)


def as_one(ranks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The mean of some ranks' losses is such a loss again: of the mean curvature, around their optimum."""
    curvatures, centers = (torch.stack(each) for each in zip(*map(drawn, ranks), strict=True))
    return curvatures.mean(0), (curvatures * centers).sum(0) / curvatures.sum(0)


def rounding(steps: int, ranks: int) -> float:
    """The most that two ways to compute the same differ in: for each step some roundings of numbers below 2."""
    return steps * (ranks + 8) * 2 * 2.0**-53


def close(rows: Rows, what: str, formula: str, found: Tensor, right: Tensor, bound: float, case: str = "") -> None:
    """Claim that parameters are equal but for rounding."""
    distance = float((found - right).abs().max())
    rows.add(what, formula, 0, distance, "1", case=case, how="compared", absolute=bound)
