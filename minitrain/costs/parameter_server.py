"""What a dense parameter server costs: bytes through each link, next to a ring's; how full servers are; time of a step.

A link carries what its rank sends and what it receives; both are counted. Exact for the real sizes of parameters and
for the placement that is given.

Notation: n workers, k servers; P parameters (tensors) of S bytes together, w bytes per element; Sₛ and Pₛ those that
server s keeps. α seconds per message whatever its size, β seconds per byte, F seconds of forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, one
from minitrain.costs.data_parallel import Sizes, ring_traffic


class Link(NamedTuple):
    """The bytes between one rank and all others in a step.

    Attributes:
        sent: By this rank.
        received: By this rank.
    """

    sent: Traffic
    received: Traffic

    @property
    def bytes(self) -> int:
        """Both ways together."""
        return self.sent.bytes + self.received.bytes

    def __add__(self, other: tuple) -> Link:
        """The traffic of both."""
        return Link(self.sent + other[0], self.received + other[1])


def server_link(parameters: Sequence[Sizes], owners: Sequence[int], server: int, workers: int) -> Link:
    """A pull of Sₛ to each worker and a push of Sₛ + wPₛ from each: n(2Sₛ + wPₛ) bytes, a message for each kind.

    With one server this is about 2nS, with k about 2nS/k (derived; Li et al. 2014, §3.2, for who sends what).

    Args:
        parameters: Those that are trained, each once.
        owners: Which server keeps each.
        server: Whose link.
        workers: n.
    """
    share = [parameter for parameter, owner in zip(parameters, owners, strict=True) if owner == server]
    link = Link(NOTHING, NOTHING)
    for kind in dict.fromkeys(parameter.kind for parameter in share):
        members = [parameter for parameter in share if parameter.kind == kind]
        elements, item_size = sum(member.elements for member in members), members[0].item_size
        link += (one(elements, item_size, workers), one(elements + len(members), item_size, workers))
    return link


def worker_link(parameters: Sequence[Sizes], owners: Sequence[int], servers: int) -> Link:
    """2S + wP, whatever the number of servers: all servers' traffic with one worker, from the other side."""
    link = Link(NOTHING, NOTHING)
    for server in range(servers):
        sent, received = server_link(parameters, owners, server, workers=1)
        link += (received, sent)
    return link


def busiest_server(parameters: Sequence[Sizes], owners: Sequence[int], servers: int, workers: int) -> int:
    """Bytes through the link of the server that has most: max over s of n(2Sₛ + wPₛ)."""
    return max(server_link(parameters, owners, server, workers).bytes for server in range(servers))


def busiest_in_ring(parameters: Sequence[Sizes], workers: int) -> int:
    """Bytes through the busiest link if the workers all-reduce one bucket around a ring: about 4(n−1)/n · (S + wP).

    A rank receives what the rank before it sends (Patarasuk & Yuan 2009).
    """
    whole = sum(parameter.elements * parameter.item_size for parameter in parameters)
    sent = [ring_traffic(parameters, whole + 1, workers, rank).bytes for rank in range(workers)]
    return max(sent[rank] + sent[rank - 1] for rank in range(workers))


def over_ring(workers: int, servers: int) -> float:
    """n²/(2k(n−1)): bytes through an evenly filled server's link, 2nS/k, over a ring's, 4(n−1)/n · S. For n ≥ 2."""
    return workers**2 / (2 * servers * (workers - 1))


def servers_to_match(workers: int) -> int:
    """⌈n²/(2(n−1))⌉: the fewest servers with which an even server's link carries no more than a ring's. For n ≥ 2.

    About half as many as workers, in addition to them. Source: derived. Jiang et al. 2020, "A Unified Architecture for
    Accelerating Distributed DNN Training" (BytePS), §4.1, let the workers' machines serve too.
    """
    return -(-(workers**2) // (2 * (workers - 1)))


def fullest_at_most(sizes: Sequence[int], servers: int) -> float:
    """S/k + (1 − 1/k) · max: no server has more, since it was the emptiest when it got its last tensor.

    Source: Graham 1966, "Bounds for certain multiprocessing anomalies": the argument behind 2 − 1/k, for any order.
    """
    return sum(sizes) / servers + (1 - 1 / servers) * max(sizes, default=0)


def largest_first_ratio(servers: int) -> float:
    """4/3 − 1/(3k): the fullest server over the fullest in the best of all placements, at most.

    Source: Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 2.
    """
    return 4 / 3 - 1 / (3 * servers)


def least_fullest(sizes: Sequence[int], servers: int) -> int:
    """Bytes of the fullest server in the best of all placements, found by trying them.

    Takes tensor after tensor and keeps every different set of loads that may still be better than largest first, which
    is the answer if none is, or at once if it has no more than every placement must have. Only for few tensors.
    """
    ordered, empty = sorted(sizes, reverse=True), (0,) * servers
    greedy = empty
    for size in ordered:
        greedy = tuple(sorted((greedy[0] + size, *greedy[1:])))
    most = greedy[-1]
    if most == max([-(-sum(sizes) // servers), *sizes]):
        return most
    loads = {empty}
    for size in ordered:
        loads = {
            tuple(sorted((*old[:i], old[i] + size, *old[i + 1 :])))
            for old in loads
            for i in range(servers)
            if old[i] + size < most and (i == 0 or old[i] != old[i - 1])  # equally full servers are alike
        }
    return min((each[-1] for each in loads), default=most)


def step_time(pull: float, push: float, workers: int, alpha: float, beta: float, compute: float = 0.0) -> float:
    """(α + βS) + F + n(α + β(S + wP)): seconds from the first pull until one server has every push. For push ≥ pull.

    The server's port takes n pulls one after the other, but the first worker need not wait for the last: while the
    server still sends, the first pushes come in, for a link carries both directions at once. So the pushes follow the
    first pull without a gap, and n pulls and n pushes take the time of n + 1 messages.

    Source: derived, with the ports of Thakur, Rabenseifner & Gropp 2005, "Cost Model".

    Args:
        pull: S.
        push: S + wP.
        workers: n.
        alpha: α.
        beta: β.
        compute: F.
    """
    return (alpha + beta * pull) + compute + workers * (alpha + beta * push)
