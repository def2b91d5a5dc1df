"""The cost of sparse tables: bytes by the distinct ids of a batch, the expected number of those, bytes of a row.

Notation: d elements in a row, w bytes per element, 8 bytes per id; u distinct ids; N ids in all; D draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic

ID = 8  # bytes


class SparseStep(NamedTuple):
    """The bytes between a worker and servers: ids of rows that it wants, the rows, and a gradient for each row."""

    ids: Traffic
    rows: Traffic
    gradients: Traffic

    @property
    def to_server(self) -> Traffic:
        """What workers send."""
        return self.ids + self.gradients

    @property
    def to_worker(self) -> Traffic:
        """What servers send."""
        return self.rows


def step(counts: Sequence[Sequence[int]], dimensions: Sequence[int], item: int = 4) -> SparseStep:
    """8u for ids, dwu for rows and dwu for gradients: of one worker with all servers, or one server with all workers.

    All tables share a message; ranks without rows for each other send none (Li et al. 2014, §2.2 and §4.2).
    `counts[p][t]`: distinct ids of table t between this rank and its p-th partner; `dimensions[t]`: its d.
    """
    ids = rows = NOTHING
    for partner in counts:
        ids += _message(sum(partner) * ID)
        rows += _message(sum(count * d * item for count, d in zip(partner, dimensions, strict=True)))
    return SparseStep(ids, rows, rows)


def _message(size: int) -> Traffic:
    return Traffic(size, 1) if size else NOTHING


def dense_step(rows: int, dimension: int, item: int = 4) -> int:
    """2Ndw: bytes between a worker and the servers if it pulled the whole table and pushed its whole gradient."""
    return 2 * rows * dimension * item


def zipf(ids: int, exponent: float) -> list[float]:
    """pₖ = k^−a / Σ j^−a: how often the k-th most frequent of N ids comes. Zipf 1949; a = 0 makes all alike."""
    weights = [k**-exponent for k in range(1, ids + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def expected_distinct(draws: int, frequencies: Sequence[float]) -> float:
    """Σ 1 − (1−pₖ)^D: how many different ids D draws have on average; each draw misses id k with probability 1 − pₖ."""
    # 1 − (1−p)^D without losing the digits of a small p
    return math.fsum(-math.expm1(draws * math.log1p(-p)) if p < 1 else float(draws > 0) for p in frequencies)


def row_bytes(dimension: int, states: int, item: int = 4) -> int:
    """(d + states)w: a row and its states; d states for Adagrad, 1 for row-wise Adagrad, 2d + 1 for Adam, 0 for SGD."""
    return (dimension + states) * item
