"""What a dense parameter server costs: bytes through each link, next to a ring's, and the time of a step.

A link carries what its rank sends and receives; both are counted, exactly for the placement `owners` (which server
keeps each parameter). n workers, k servers; P parameters (tensors) of S bytes, w bytes per element; Sₛ and Pₛ those of
server s. α seconds per message, β seconds per byte, F seconds of forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, one
from minitrain.costs.data_parallel import Sizes, ring_traffic


class Link(NamedTuple):
    """The bytes between one rank and all others in a step: sent and received by this rank."""

    sent: Traffic
    received: Traffic

    @property
    def bytes(self) -> int:
        """Both ways together."""
        return self.sent.bytes + self.received.bytes

    def __add__(self, other: tuple) -> Link:
        return Link(self.sent + other[0], self.received + other[1])


def server_link(parameters: Sequence[Sizes], owners: Sequence[int], server: int, workers: int) -> Link:
    """n(2Sₛ + wPₛ), about 2nS/k: a pull of Sₛ and a push of Sₛ + wPₛ per worker and kind (Li et al. 2014, §3.2)."""
    share = [parameter for parameter, owner in zip(parameters, owners, strict=True) if owner == server]
    link = Link(NOTHING, NOTHING)
    for kind in dict.fromkeys(parameter.kind for parameter in share):
        members = [parameter for parameter in share if parameter.kind == kind]
        elements, item_size = sum(member.elements for member in members), members[0].item_size
        link += (one(elements, item_size, workers), one(elements + len(members), item_size, workers))
    return link


def busiest_server(parameters: Sequence[Sizes], owners: Sequence[int], servers: int, workers: int) -> int:
    """Bytes through the link of the server that has most: max over s of n(2Sₛ + wPₛ)."""
    return max(server_link(parameters, owners, server, workers).bytes for server in range(servers))


def busiest_in_ring(parameters: Sequence[Sizes], workers: int) -> int:
    """About 4(n−1)/n · (S + wP): bytes through the busiest link of a ring with one bucket (Patarasuk & Yuan 2009)."""
    whole = sum(parameter.elements * parameter.item_size for parameter in parameters)
    sent = [ring_traffic(parameters, whole + 1, workers, rank).bytes for rank in range(workers)]
    return max(sent[rank] + sent[rank - 1] for rank in range(workers))


def servers_to_match(workers: int) -> int:
    """⌈n²/(2(n−1))⌉: the fewest servers with which an even server's link carries no more than a ring's. For n ≥ 2."""
    return -(-(workers**2) // (2 * (workers - 1)))


def step_time(pull: float, push: float, workers: int, alpha: float, beta: float, compute: float = 0.0) -> float:
    """(α + βS) + F + n(α + β(S + wP)): seconds from the first pull until one server has every push. For push ≥ pull.

    A link carries both directions at once, so pushes come in while pulls still leave, and follow the first pull without
    a gap. `pull` is S, `push` S + wP, `compute` F (ports as in Thakur, Rabenseifner & Gropp 2005).
    """
    return (alpha + beta * pull) + compute + workers * (alpha + beta * push)
