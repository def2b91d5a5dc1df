"""Row rules: how a table applies the gradients of the rows that a batch has used.

**Idea.** A table's optimizer gets some rows, their gradients and their states, and must not look at any others:
a batch uses thousands of rows of a table of billions. A row without a gradient stays as it is. With SGD and
Adagrad a dense optimizer does the same with a gradient of zeros; with Adam it does not, since moments fade and move the
row in every step. `Adam` here is lazy and counts each row's own steps (torch's lazy `SparseAdam` counts the table's).

**Source.** Duchi, Hazan & Singer 2011, "Adaptive subgradient methods", §1.1; Kingma & Ba 2015, "Adam", algorithm 1;
Mudigere et al. 2022, "Software-hardware co-design for fast and scalable training of deep learning recommendation
models", for one sum per row (FBGEMM's `EXACT_ROWWISE_ADAGRAD`).
**Cost.** `states(dimension)` float32 numbers per row, never sent: `minitrain.costs.embedding.row_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "ids dimension"]


@runtime_checkable
class RowRule(Protocol):
    """The interface of a rule."""

    def states(self, dimension: int) -> dict[str, int]:
        """Names of the states of a row of `dimension` elements, and the numbers in each; all begin with 0."""

    def apply(self, rows: Rows, gradients: Rows, states: Mapping[str, Tensor]) -> None:
        """Change `rows` and their `states` [ids, numbers] in place."""


def _positive(rule: str, **settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{rule}: {name}={value} must be positive")


@dataclass(frozen=True)
class SGD:
    """Gradient descent: w − lr · g."""

    lr: float = 0.01

    def __post_init__(self) -> None:
        _positive("SGD", lr=self.lr)

    def states(self, dimension: int) -> dict[str, int]:
        return {}

    def apply(self, rows: Rows, gradients: Rows, states: Mapping[str, Tensor]) -> None:
        rows.add_(gradients, alpha=-self.lr)


@dataclass(frozen=True)
class Adagrad:
    """w − lr · g / (√s + eps), s the sum of g² of each element. Duchi et al. 2011, §1.1, with diagonal matrices."""

    lr: float = 0.01
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _positive("Adagrad", lr=self.lr, eps=self.eps)

    def states(self, dimension: int) -> dict[str, int]:
        return {"sum": dimension}

    def apply(self, rows: Rows, gradients: Rows, states: Mapping[str, Tensor]) -> None:
        # The same operations, in the same order, as torch's Adagrad.
        total = states["sum"].addcmul_(gradients, gradients)
        rows.addcdiv_(gradients, total.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True)
class RowWiseAdagrad:
    """Adagrad with one s for a whole row, the sum of the mean of g²: a state of 4 bytes, however long the row.

    Mudigere et al. 2022.
    """

    lr: float = 0.01
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _positive("RowWiseAdagrad", lr=self.lr, eps=self.eps)

    def states(self, dimension: int) -> dict[str, int]:
        return {"sum": 1}

    def apply(self, rows: Rows, gradients: Rows, states: Mapping[str, Tensor]) -> None:
        total = states["sum"].add_(gradients.square().mean(1, keepdim=True))  # (ids, 1)
        rows.addcdiv_(gradients, total.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True)
class Adam:
    """Adam with lazy moments: only rows with a gradient take a step, and each row counts its own.

    With the table's count instead, as in `SparseAdam`, a row that is first seen late would get no bias correction: its
    first step would be lr · (1−β₁)/√(1−β₂), more than three times lr.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _positive("Adam", lr=self.lr, eps=self.eps)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"Adam: betas={self.betas} must be two numbers from 0 to below 1")

    def states(self, dimension: int) -> dict[str, int]:
        return {"mean": dimension, "square": dimension, "steps": 1}

    def apply(self, rows: Rows, gradients: Rows, states: Mapping[str, Tensor]) -> None:
        first, second = self.betas
        steps = states["steps"].add_(1).double()  # (ids, 1)
        mean = states["mean"].lerp_(gradients, 1 - first)
        square = states["square"].mul_(second).addcmul_(gradients, gradients, value=1 - second)
        rate = (self.lr / (1 - first**steps)).to(rows.dtype)  # Kingma & Ba 2015, algorithm 1: corrected for the bias
        root = (1 - second**steps).sqrt().to(rows.dtype)
        rows.sub_(rate * mean / ((square.sqrt() / root).add_(self.eps)))


RULES: dict[str, type] = {rule.__name__: rule for rule in (SGD, Adagrad, RowWiseAdagrad, Adam)}
