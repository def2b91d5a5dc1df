"""The full form of `minitrain.zero.hybrid` is that of stage 3 (`zero/full/stage3.py`), with replicas in a checked grid.

**Cost.** Within a node `minitrain.costs.zero.step_traffic`, across nodes one all-reduce of each line's shard per step:
`minitrain.costs.hybrid_sharding.step_traffic`. Nothing more is held than in stage 3 over the ranks of a node.
Also called `HYBRID_SHARD` (FSDP), `fully_shard` with a 2-D mesh (FSDP2) and MiCS; DeepSpeed's `zero_hpz_partition_size`
is a relative, which keeps only a second copy of the parameters within a node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.control import gather_objects
from minitrain.zero.full.stage3 import Zero3


class HybridZero3(Zero3):
    """Divides everything over the ranks of a node, and averages gradients over nodes, each of which has a replica.

    The norm of `clip_grad_norm` and all state dicts are those of one node, which are the same on every node. What ranks
    across nodes hold stays equal to the last bit, because all of them get the same sums.

    Args:
        module: As for `Sharded`. The parameters and buffers of rank 0 of `comm` on rank 0 of `replicas` go to all.
        optimizer_class: As for `Sharded`.
        comm: The ranks of this node, which divide the model; None means everyone.
        compute_dtype: As for `Sharded`.
        replicas: The ranks that have this rank's place in each of the nodes, as `axes(node=N, local=L)` gives both:
            `comm` is `mesh.get_group("local")`, and this `mesh.get_group("node")`.
        **options: As for `Sharded`.

    Raises:
        ValueError: Also where ranks of `replicas` have different places in their nodes, or nodes have different sizes.

    Examples:
        >>> from minitrain.comm import axes
        >>> from minitrain.zero import HybridZero3
        >>> mesh = axes(node=2, local=ranks // 2)
        >>> node, replicas = mesh.get_group("local"), mesh.get_group("node")
        >>> model = HybridZero3(model, torch.optim.AdamW, node, replicas=replicas, lr=0.01)
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        comm: AnyComm = None,
        compute_dtype: torch.dtype | None = None,
        *,
        replicas: AnyComm,
        **options: Any,
    ):
        # Before all else, since the constructor compares settings and broadcasts parameters.
        self.replicas = as_comm(replicas).unchecked
        super().__init__(module, optimizer_class, comm, compute_dtype, **options)

    def _prepare(self) -> None:
        super()._prepare()
        # Gradients are divided by this number before the sum in the node, so the sum over nodes gives the mean.
        self.batch_ranks = self.ranks * self.replicas.ranks
        self._summed = False  # whether this step's gradients have been summed over nodes

    def synchronize(self) -> None:
        if self._summed:
            raise RuntimeError(
                "synchronize() has been called in this step, and nodes' gradients are summed already; call zero_grad() "
                "before the next backward, and run all micro-batches but the last in no_sync() blocks"
            )
        super().synchronize()
        self._summed = True
        # Each rank brings its node's sum of its own shards, once per step, and gets that of all nodes.
        # Only after the node's reduce-scatter, so that a rank sends 1/L of the model over the slow network.
        shards = [collector.shard for collector in self._collectors if collector.shard is not None]
        handles = [self.replicas.all_reduce(shard) for shard in shards if shard.numel()]
        for handle in handles:
            handle.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._summed = False

    def _agree(self, module: nn.Module, settings: dict[str, str]) -> None:
        """Compare with the other nodes first, then within the node."""
        mine = self.rank, self.ranks
        places = gather_objects(mine, self.replicas.group)
        found = None
        if any(place != mine for place in places):
            found = (
                f"replicas: its ranks are at the places {places} of `comm`, as (rank, ranks), but must be at the same "
                "place of groups of one size; use the groups of axes(node=N, local=L)"
            )
        # A rank that raised alone would leave the others of its node waiting in the next message.
        found = next(filter(None, gather_objects(found, self.comm.group)), None)
        if found is None:
            try:
                self._compare(module, settings, self.replicas)
            except ValueError as error:
                found = str(error)
            found = next(filter(None, gather_objects(found, self.comm.group)), None)
        if found is not None:
            raise ValueError(found)
        super()._agree(module, settings)

    def _broadcast_states(self, comm: Comm) -> None:
        super()._broadcast_states(self.replicas)
        super()._broadcast_states(comm)
