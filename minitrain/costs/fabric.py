"""Bytes per second and waits of messages between GPUs in nodes: rings over all cards, messages over one.

A group of n ranks that are `stride` apart has g of them in each of N nodes. NCCL opens g rings, each of which leaves
the node at another rank, so that together they use g network cards. A message from one rank to another, and an
all-to-all, use only the rank's own card.

Source: NCCL, `src/graph/tuning.cc`: channels times the speed between nodes, and a latency for each of n − N steps
within nodes and N − 1 between them. Measured: NVIDIA/nccl, issue 1250 (1, 2 and 4 GPUs in each of two nodes sum a
gigabyte in 0.27, 0.13 and 0.067 s); `nccl-tests`, issue 267, for all-to-alls.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from minitrain.costs.roofline import Machine


class Fabric(NamedTuple):
    """How GPUs are connected, and what messages reach of the data sheet.

    Attributes:
        per_node: GPUs in a node; ranks fill nodes in order.
        reached: The part of the bytes per second within a node that large messages reach.
        reached_out: The part of a network card's: on good fabrics 0.78 to 0.96 for a gigabyte, on bad ones 0.1 to 0.6
            (arXiv 2411.13055, figure 2; NVIDIA/nccl, issues 812 and 2409).
        hop: Seconds that a ring waits at each step within a node (chapter 01).
        hop_out: Seconds that it waits at each step between nodes.
    """

    per_node: int = 8
    reached: float = 0.8
    reached_out: float = 0.8
    hop: float = 3e-6
    hop_out: float = 10e-6

    def inside(self, ranks: int, stride: int = 1) -> int:
        """g: ranks of a group in each node; all of them if they are in one."""
        return ranks if ranks * stride <= self.per_node else max(1, self.per_node // stride)

    def ring(self, machine: Machine, ranks: int, stride: int = 1) -> float:
        """Bytes per second of a rank's share of a ring: NVLink's, or g cards' where the group leaves its node."""
        near, inside = self.reached * machine.link, self.inside(ranks, stride)
        return near if inside == ranks else min(near, inside * self.reached_out * machine.network)

    def message(self, machine: Machine, ranks: int, stride: int = 1) -> float:
        """Bytes per second of a message to another rank of the group: a rank's own card if any of them leave a node."""
        inside = self.inside(ranks, stride) == ranks
        return self.reached * machine.link if inside else self.reached_out * machine.network

    def wait(self, ranks: int, stride: int = 1) -> float:
        """Seconds until a byte has gone around a ring: n − N hops within nodes, N − 1 between them."""
        nodes = -(-ranks // self.inside(ranks, stride))
        return (ranks - nodes) * self.hop + (nodes - 1) * self.hop_out

    def leaving(self, ranks: int, stride: int = 1) -> float:
        """The part of an all-to-all's bytes that takes the slowest way: out of the node, (n − g)/n; else to others."""
        inside = self.inside(ranks, stride)
        return (ranks - (inside if inside < ranks else 1)) / ranks


DEFAULT = Fabric()
PIECE = 10**6
"""Parameters for each data-parallel rank in a bucket, at least, so that a ring's waits do not outweigh its bytes.

Source: Megatron-LM, `DistributedDataParallel`: buckets of max(40 million, a million times ranks).
"""


def pieces(parameters: float, ranks: int, layers: int) -> int:
    """Collectives in which a rank's gradients travel: one for each layer and one for the rest, but none too small."""
    return min(layers + 1, ceil(parameters / (PIECE * ranks)))
