"""An optimizer that can also step ZeRO's flat shards, because it is told which part of which tensor lies where.

**Idea.** A flat shard has no rows, columns or norms of tensors. `Sharded` therefore hands the shards over together with
a list of their pieces and with the ranks that have the other pieces, and the optimizer fetches from these ranks what it
needs: sums (LAMB, LARS, Adafactor) or whole matrices (Muon).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.zero.full.partition import Piece


class OnShards(torch.optim.Optimizer):
    """Base class of optimizers that step whole tensors or, after `share_layers`, flat shards."""

    _pieces: Mapping[Tensor, Sequence[Piece]] = {}
    _comm: Comm | None = None
    _device: torch.device | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; refuses pieces of tensor-parallel layers, whose norms, rows and columns other ranks have, too."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        # Not what AdamW steps: element by element it can step any piece.
        for parameter in group["params"] if group.get("use_muon", True) else ():
            if hasattr(parameter, "tensor_parallel_dim") and getattr(parameter, "tensor_parallel_shards", None) != 1:
                self.param_groups.pop()
                raise ValueError(
                    f"{type(self).__name__} needs whole layers, but a parameter of shape {tuple(parameter.shape)} is a "
                    "piece of a tensor-parallel one; use one that treats each element by itself, as torch.optim.AdamW"
                )

    def share_layers(
        self, shards: Sequence[Mapping[Tensor, Sequence[Piece]]], comm: Comm, device: torch.device | None = None
    ) -> None:
        """Step flat shards in place of the parameters that the optimizer was made with.

        Args:
            shards: For each parameter group its shards, and of each the pieces; all ranks list the same tensors in the
                same order.
            comm: The ranks that have the other pieces.
            device: Where these ranks send from and receive, if the shards are elsewhere: NCCL sends nothing from the
                host. None means that the shards are there.
        """
        for group, its in zip(self.param_groups, shards, strict=True):
            # In the same groups, so that their options and a scheduler's hold for the shards.
            group["params"] = list(its)
        self._pieces = {shard: pieces for its in shards for shard, pieces in its.items()}
        self._comm, self._device = comm, device

    @staticmethod
    def loss_of(closure: Any) -> Any:
        """What torch's optimizers do first in a step: call the closure, with gradients enabled, if there is one."""
        with torch.enable_grad():
            return None if closure is None else closure()

    def pieces(self, parameter: Tensor) -> Sequence[Piece]:
        """What lies in a parameter: pieces of tensors if it is a flat shard, else one whole tensor."""
        # Under ZeRO every tensor of the line is listed, so all ranks go through equally many.
        return self._pieces.get(parameter) or (Piece("", parameter.shape, 0, 0, slice(0, parameter.numel())),)

    def found(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """All parameters that have a gradient: parameter, gradient, and parameter group."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield parameter, parameter.grad, group

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks that have pieces."""
        if self._comm is None or self._comm.ranks == 1:
            return tensor
        total = tensor.to(self._device)  # itself, where it is there already
        # One small all-reduce: each rank brings what it found in its own pieces.
        self._comm.all_reduce(total).wait()
        return total.to(tensor.device)
