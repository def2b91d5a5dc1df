"""Hierarchical all-reduce: add within each node first, so that the slow links between nodes carry little.

**Idea.** The L ranks of a node share fast links; the N nodes are joined by slow links, one per rank. Reduce-scatter
within each node, all-reduce each rank's chunk with the ranks in the same position of the other nodes, and all-gather
within each node.
**Source.** Mikami et al. 2018, "Massively distributed SGD: ImageNet/ResNet-50 training in a flash" (2-D torus).
**Sent.** By each rank, of a tensor of S bytes: about 2(L−1)/L · S over fast links, and only 2(N−1)/N · S/L over slow
links. A flat ring sends 2(n−1)/n · S over a single slow link of each node.
**Cost.** 2(L−1)(α + βS/L) + 2(N−1)(α' + β'S/(LN)) of time; the tensor is changed in place, next to a receive buffer of
S/L.
"""

from __future__ import annotations

from torch import Tensor

from minitrain.collectives import ring
from minitrain.comm.messages import Group


def all_reduce(tensor: Tensor, within: Group = None, across: Group = None) -> Tensor:
    """Add `tensor` over all ranks, in place, and return it when it is the sum.

    Args:
        tensor: Contiguous, of the same shape and dtype on all ranks.
        within: The ranks of this node.
        across: The ranks in the same position of all nodes.
    """
    # Over fast links: rank r of a node gets chunk r of the node's sum.
    shard = ring.reduce_scatter(tensor, within)  # (elements / local,)
    # Over slow links, all positions at once: the chunk becomes the sum over all nodes.
    ring.all_reduce(shard, across)
    # Over fast links: the chunks of the other ranks of this node.
    return ring.all_gather(tensor, within)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
