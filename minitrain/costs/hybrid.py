"""The cost of hybrid parallelism: bytes of a step's three all-to-alls, and of the busiest rank and a server.

n workers, s servers, d elements in a row, w bytes per element, 8 bytes per id, u distinct ids in a worker's part of the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs.communication import Traffic
from minitrain.costs.embedding import ID, SparseStep, step


class HybridStep(NamedTuple):
    """The bytes between one worker and the others for tables in a step: as it asks for rows, and as it owns them."""

    asks: SparseStep
    serves: SparseStep

    @property
    def sent(self) -> Traffic:
        """Ids that it wants, rows that others want, gradients of the rows that it got."""
        return self.asks.ids + self.serves.rows + self.asks.gradients

    @property
    def received(self) -> Traffic:
        """The same from the others' side."""
        return self.serves.ids + self.asks.rows + self.serves.gradients


def worker(
    wishes: Sequence[Sequence[Sequence[int]]], dimensions: Sequence[int], rank: int, item: int = 4
) -> HybridStep:
    """Each worker is also a server to all others (Naumov et al. 2019, §3); rows that it wants from itself are not sent.

    `wishes[r][t][s]`: distinct ids of table t that worker r wants from worker s; `dimensions[t]`: its d.
    """
    others = [other for other in range(len(wishes)) if other != rank]
    asked = [[counts[other] for counts in wishes[rank]] for other in others]  # [other][table]
    served = [[counts[rank] for counts in wishes[other]] for other in others]
    return HybridStep(step(asked, dimensions, item), step(served, dimensions, item))


def on_average(distinct: float, dimension: int, workers: int, item: int = 4) -> float:
    """2(n−1)/n · u · (8 + 2dw) bytes to and from a worker in a step, for one table whose ids a hash spreads evenly."""
    return 2 * (workers - 1) / workers * distinct * (ID + 2 * dimension * item)


def server_on_average(distinct: float, dimension: int, workers: int, servers: int = 1, item: int = 4) -> float:
    """n/s · u · (8 + 2dw) bytes to and from a server in a step, for one table: n²/(2s(n−1)) times `on_average`."""
    return workers / servers * distinct * (ID + 2 * dimension * item)
