"""Hierarchical local SGD: a small sync within each node at every step, a big one across nodes at every H-th.

**Idea.** Links within a node are ten times as fast as those between nodes. So the L ranks of a node average their
gradients in every step, as in data parallelism, and learn as one. Nodes drift apart for H steps and then average
their parameters, of which each of a node's ranks carries a part across.

**Source.** Lin et al. 2020, "Don't Use Large Mini-batches, Use Local SGD", appendix D (hierarchical local SGD).
**Sent.** Within a node an all-reduce of the gradients, S bytes, in every step, and an all-gather of S in every H-th;
across N nodes an all-reduce of S/L in every H-th.
**Cost.** That of `local_sgd` with N ranks rather than L · N. Also called small sync and big sync.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minitrain.comm.messages import Group, all_gather, rank_and_size
from minitrain.data_parallel.local_sgd import average


class HierarchicalSGD(nn.Module):
    """Averages gradients within a node, and parameters across nodes after every H-th step.

    Args:
        module: Its parameters begin with the same values on all ranks.
        every: H.
        within: The ranks of this node.
        across: The ranks that have this rank's place in each of the nodes.
    """

    def __init__(self, module: nn.Module, every: int, within: Group, across: Group):
        super().__init__()
        assert every >= 1, f"every={every} must be at least 1, the number of steps between two big syncs"
        assert not list(module.buffers()), "each rank would keep buffers of its own, which nothing averages"
        self.module, self.every, self.within, self.across, self.steps = module, every, within, across, 0

    def forward(self, *inputs):
        return self.module(*inputs)

    def synchronize(self) -> None:
        """The small sync: call it after each backward."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        gradients = [p.grad for p in trained if p.grad is not None]
        # Another rank may have used another one of the same size, and they would be averaged.
        assert len(gradients) == len(trained), "a parameter is unused in this step"
        # Of the node's batch: after the optimizer's step its ranks still hold the same parameters.
        average(gradients, self.within)

    @torch.no_grad()
    def after_step(self) -> None:
        """Call it after each step of the optimizer; the H-th is followed by the big sync."""
        self.steps += 1
        if self.steps % self.every:
            return
        # A mean of equal numbers may round, so frozen parameters are left alone.
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        flat = torch.cat([p.flatten() for p in parameters])  # [elements]
        rank, ranks = rank_and_size(self.within)
        # All ranks of a node hold the same, so each carries one L-th of it across, the last one with some zeros.
        mine = F.pad(flat, (0, -len(flat) % ranks)).chunk(ranks)[rank].clone()
        average([mine], self.across)
        # Each gets the parts of the others back over the fast links.
        whole = mine.new_empty(ranks * len(mine))
        all_gather(mine, self.within, into=whole).wait()
        means = whole[: len(flat)].split([p.numel() for p in parameters])
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.copy_(mean.view_as(parameter))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
