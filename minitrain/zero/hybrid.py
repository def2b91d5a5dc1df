"""Hybrid sharding (HSDP): stage 3 within a node, and a replica of the whole model on each node.

**Idea.** Stage 3 gathers parameters twice in every micro-batch, over links between nodes that are ten times as slow as
those within one. So the L ranks of a node divide the model among themselves, each node has all of it, and only
gradients cross: the shard of each rank is summed with the same shard of the other nodes, once per step.

**Source.** Zhao et al. 2023, "PyTorch FSDP", §3.2.2 (hybrid sharding); Zhang et al. 2022, "MiCS", §3.
**Sent.** Within a node stage 3's 3Ψ elements in each micro-batch; across N nodes an all-reduce of Ψ/L in each step.
**Cost.** Each rank holds 1/L of parameters, gradients and optimizer states, where stage 3 over all ranks holds 1/(L·N).
The full form, `minitrain.zero.full.hybrid`, adds all that stage 3's full form adds.
Near relatives are MiCS and the hpZ of ZeRO++.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from minitrain.comm.messages import Group, all_reduce, rank_and_size
from minitrain.zero.stage3 import Zero3


class HybridZero3(Zero3):
    """Blocks divided within a node and replicated across nodes; used like `Zero1`.

    Args:
        module: Its blocks, as for `Zero3`; the same on all ranks of all nodes.
        optimizer_class: One that steps each element by itself, such as `torch.optim.AdamW`.
        group: The ranks of this node.
        replicas: The ranks that have this rank's place in each of the nodes, and so the same shard.
        **options: Given to `optimizer_class`, as `lr=0.1`.
    """

    def __init__(self, module: nn.Sequential, optimizer_class: Any, group: Group, replicas: Group, **options: Any):
        super().__init__(module, optimizer_class, group, **options)
        self.replicas = replicas
        _, nodes = rank_and_size(replicas)
        for unit in self.units:
            # The mean is one over all ranks of all nodes, so a unit divides by L · N.
            unit.ranks *= nodes

    def synchronize(self) -> None:
        """After the last backward of a step: `shard.grad` is the mean over all ranks of all nodes."""
        for unit in self.units:
            gradient: Any = unit.shard.grad  # [padded / L]
            # Over slow links: each rank brings its node's sum of one shard, and gets that of all nodes. Once per
            # step, since the micro-batches have been added up within the node.
            all_reduce(gradient, self.replicas).wait()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
