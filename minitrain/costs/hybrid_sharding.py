"""The cost of hybrid sharding: stage 3 of ZeRO within a node of L ranks, and an all-reduce of shards across N nodes.

Zhao et al. 2023, "PyTorch FSDP", §3.2.2; exact for lines of real sizes with padding, through rings. Ψ parameters, A
micro-batches in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from minitrain.costs.communication import NOTHING, Levels, ring_all_reduce
from minitrain.costs.zero import Line, padding, shard_elements
from minitrain.costs.zero import step_traffic as zero_step_traffic


def volume(parameters: float, local: int, micro_batches: int = 1) -> tuple[float, float]:
    """3AΨ elements in collectives within a node, and Ψ/L across nodes, for each rank in a step."""
    return 3 * micro_batches * parameters, parameters / local


def step_traffic(lines: Sequence[Line], nodes: int, local: int, rank: int, micro_batches: int = 1) -> Levels:
    """What a rank sends in a step through rings, exactly, on each kind of link; rank = node · L + place.

    Within: 3A(L−1)/L of each padded line. Across: 2(N−1)/N of each shard of s = ⌈E/L⌉ elements.
    """
    node, place = divmod(rank, local)
    across = NOTHING
    for line in lines:
        if line.trainable:
            across += ring_all_reduce(shard_elements(line.elements, local), line.item_size, nodes, node)
    return Levels(zero_step_traffic(3, lines, local, place, micro_batches), across)


def out_of_a_node(lines: Sequence[Line], nodes: int, local: int, node: int, micro_batches: int = 1) -> int:
    """Bytes that all ranks of a node together send to other nodes in a step: about 2(N−1)/N · wΨ, whatever A is."""
    ranks = range(node * local, (node + 1) * local)
    return sum(step_traffic(lines, nodes, local, rank, micro_batches).across.bytes for rank in ranks)


def out_of_a_node_without(lines: Sequence[Line], nodes: int, local: int, micro_batches: int = 1) -> int:
    """The same of stage 3 over all n = L · N ranks in one ring, over one rank's link: 3A(n−1)/n of each padded line.

    Of frozen parameters 2A(n−1)/n: they are gathered, and have no gradients to be reduced.
    """
    if nodes == 1:
        return 0
    ranks = nodes * local
    sent = 0
    for line in lines:
        padded = line.item_size * (line.elements + padding(line.elements, ranks))
        sent += (3 if line.trainable else 2) * micro_batches * padded * (ranks - 1) // ranks
    return sent
