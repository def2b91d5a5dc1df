"""The full form of `minitrain.zero.offload` adds parameters in 16 bits, and copies that don't hold up backward.

**Idea.** Of the 16 bytes per parameter that Adam takes, the device computes with 4: parameters and gradients in 16
bits. Only the optimizer touches the other 12, once per step, so they are on the host.

**Source.** Ren et al. 2021, "ZeRO-Offload". Their overlap of a batch's step with the forward of the next batch (§5.2)
is left out: its parameters are one step old.
**Sent.** As in the small form, but gradients leave while backward goes on, and only 16-bit numbers cross.
**Waits for the GPU** once per step. Open `zero/full/stage2.py` first, then `zero/full/pools.py` and this file.
**Cost.** The device holds what it holds in stage 2, without the shards of gradients and optimizer states.
Also called `offload_optimizer: {"device": "cpu"}` (DeepSpeed), `--optimizer-cpu-offload` (Megatron-LM), and
`CPUOffloadPolicy` (FSDP2), which offloads parameters, too.
"""

from __future__ import annotations

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.memory import optimizer_states
from minitrain.zero.full.flat_shards import FlatShard
from minitrain.zero.full.pools import Pool
from minitrain.zero.full.stage2 import Collector, Zero2


class ZeroOffload(Zero2):
    """Divides optimizer states and gradients over the ranks, and keeps them on the host.

    Attributes:
        device_pool: The device's memory, with parameters, and in backward lines of gradients.
        host_pool: The host's memory, with float32 copies of the shards, gradients' shards and optimizer states.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self.device_pool = Pool(self._device(), self._on_device)
        self.host_pool = Pool(torch.device("cpu"), self._on_host)

    @torch.no_grad()
    def synchronize(self) -> None:
        super().synchronize()
        # The optimizer on the host reads the last gradients next.
        self.host_pool.wait()

    def _make_master(self, line: FlatShard, exact: Shaped[Tensor, " shard"]) -> nn.Parameter:
        # Memory of its own, even if the device is a CPU.
        return nn.Parameter(exact.to("cpu", self._master_dtype(exact.dtype), copy=True))

    def _keep(self, collector: Collector, part: Shaped[Tensor, " shard"]) -> None:
        """Copy this rank's part of a mean gradient to the host, and add it there to earlier ones."""
        if collector.shard is None:
            collector.shard = self.host_pool.empty(part)
        if collector.fresh:
            # Overwrites the last step's, so nothing has to be waited for: backward goes on meanwhile.
            self.host_pool.start_copy(collector.shard, part)
        else:
            # A copy cannot add, so later micro-batches need a second buffer, and the host must wait for it.
            incoming = self.host_pool.empty(part)
            self.host_pool.start_copy(incoming, part)
            self.host_pool.wait()
            collector.shard.add_(incoming)
        collector.fresh = False

    def _copy_master_to_shard(self, line: FlatShard) -> None:
        """Copy the new shard to the device; rounded here, so that it crosses in as few bytes as it has there."""
        if line.master is not None:
            self.device_pool.start_copy(line.shard, line.master.detach().to(line.shard.dtype))

    def _on_device(self) -> list[Tensor | None]:
        tensors = [*self.module.parameters(), *(parameter.grad for parameter in self.module.parameters())]
        return [*(line.flat for line in self.lines), *tensors, *(collector.flat for collector in self._collectors)]

    def _on_host(self) -> list[Tensor | None]:
        shards = [collector.shard for collector in self._collectors]
        return [*(line.master for line in self.lines), *shards, *optimizer_states(self.optimizer)]
