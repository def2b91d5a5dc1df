"""The full form of `minitrain.zero.offload`, with parameters in 16 bits, and copies that don't hold up backward.

ZeRO-Offload: the optimizer's states, and its step, on the host.

**Idea.** Of the 16 bytes a parameter that Adam takes, the device computes with 4: parameters and gradients in 16 bits.
The other 12 are touched once a step, by the optimizer, whose work is small: a few operations an element, where forward
and backward have six for each token. So they go to the host, and so does the step.

**Source.** Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", §3.5 for what goes where,
§4.2 for many ranks, on top of stage 2. Their step of one batch beside the forward of the next (§5.2) is left out: its
parameters are a step old.

**What each rank holds.** On the device all parameters, and during backward the lines of stage 2. On the host 1/n of
gradients, optimizer states and float32 parameters.

**What is sent, when and why.** Between ranks as in stage 2: a reduce-scatter for each line, since every rank steps its
own shard, and an all-gather after the step. Between device and host: each shard of the mean gradient as soon as it is
there, while backward goes on; and each shard of new parameters, rounded, after the step. Only 16-bit numbers cross.

**Cost.** Ψ elements out and Ψ back in a step, over n: each rank moves its own shards, through a link of its own. Every
micro-batch copies its gradients out again. The device holds what stage 2 holds less gradients and optimizer states.

**Also called.** `offload_optimizer: {"device": "cpu"}` in DeepSpeed; `CPUOffloadPolicy` in FSDP2, which offloads
parameters too; `--optimizer-cpu-offload` in Megatron-LM.
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
        host_pool: The host's memory, with float32 copies of the shards, gradients' shards and optimizer states. Its
            `copied` counts the bytes that have come out of the device, `device_pool.copied` those that went back.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self.device_pool = Pool("device", self._device(), self._on_device)
        self.host_pool = Pool("host", torch.device("cpu"), self._on_host)

    @torch.no_grad()
    def synchronize(self) -> None:
        super().synchronize()
        self.host_pool.wait()

    def _make_master(self, line: FlatShard, exact: Shaped[Tensor, " shard"]) -> nn.Parameter:
        dtype = exact.dtype
        if self.compute_dtype is not None and dtype.is_floating_point:
            dtype = torch.promote_types(dtype, torch.float32)
        return nn.Parameter(exact.to("cpu", dtype, copy=True))  # memory of its own, also where that is a CPU's anyway

    def _keep(self, collector: Collector, part: Shaped[Tensor, " shard"]) -> None:
        """Copy this rank's part of a mean gradient to the host, and add it there to what has come before."""
        if collector.shard is None:
            collector.shard = self.host_pool.empty(part)
        if collector.fresh:
            self.host_pool.start_copy(collector.shard, part)
        else:
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
