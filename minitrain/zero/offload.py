"""ZeRO-Offload: the optimizer's states, and its step, are on the host.

**Idea.** Forward and backward need parameters and gradients on the device. Optimizer states are used only once in a
step, for a few operations per element. So they are kept in the host's memory, and the CPU makes the step.

**Source.** Ren et al. 2021, "ZeRO-Offload", §3.5 for what goes where, and §4.2 for many ranks.
**Sent.** Between ranks the same as in stage 2. Between device and host each shard of a gradient goes out as soon as it
has arrived, Ψ/n elements in each micro-batch, and each new shard of parameters comes back after the step, Ψ/n.
**Cost.** The device holds all parameters, and in backward two gradients. The host holds 1/n of parameters, gradients
and optimizer states.
There is no full form: DeepSpeed's has parameters in 16 bits, and copies that don't hold up backward.
Also called CPU offload, optimizer offload; FSDP2's `CPUOffloadPolicy` offloads
parameters, too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from minitrain.comm.messages import Group
from minitrain.zero.stage2 import Zero2


class ZeroOffload(Zero2):
    """A module whose gradients' shards, optimizer states and step are on the host; used like `Zero2`."""

    def __init__(self, module: nn.Module, optimizer_class: Any, group: Group = None, **options: Any):
        super().__init__(module, optimizer_class, group, **options)
        # A copy even where the device is a CPU, so that both memories can be told apart.
        self.shards = [shard.to("cpu", copy=True) for shard in self.shards]
        # This optimizer replaces stage 2's, which has not made any states yet.
        self.optimizer = optimizer_class(self.shards, **options)

    def keep(self, number: int, mean: Tensor) -> None:
        # Device to host; backward waits for the copy. It is added to what the host has.
        super().keep(number, mean.to("cpu", copy=True))

    def step(self) -> None:
        assert all(shard.grad is not None for shard in self.shards), "a parameter is unused: take it out of the module"
        self.optimizer.step()
        for flat, shard in zip(self.flats, self.shards, strict=True):
            # Host to device: the new shard goes where the all-gather takes it from.
            self.shard_of(flat).copy_(shard)
        self.gather()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
