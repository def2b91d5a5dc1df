"""A step of mixed-precision training: 16 bits where it is computed, 32 where it is remembered.

**Idea.** Float32 weights → 16-bit copy → forward → loss × scale → backward → gradients in float32, divided by the
scale → clip → step. In bfloat16 the scale is 1 and never changes: that is all the difference.

**Source.** Micikevicius et al. 2018, "Mixed precision training", §3 and figure 1.
**Sent.** The gradients in 16 bits, half the bytes of float32; and the number that says whether all are finite.
**Cost.** 18 bytes per parameter at the step: 2 in the model, 4 for gradients, 4 + 4 + 4 for the copy and Adam's states.
Before it 16, since until their sum gradients have 2 bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minitrain.comm.messages import Group, all_reduce, rank_and_size
from minitrain.precision.loss_scaling import LossScale


class MixedPrecision:
    """Trains a module in 16 bits; ranks of `group` share the batch.

    Args:
        module: In float32; it is changed to `dtype`.
        dtype: torch.bfloat16 or torch.float16.
        optimizer_class: Of the float32 copies.
        group: None means everyone.
        **options: Given to `optimizer_class`.
    """

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, optimizer_class: Any, group: Group = None, **options: Any
    ):
        assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form of ZeRO"
        assert all(p.dtype == torch.float32 for p in module.parameters()), "masters are float32, as the module is"
        assert not list(module.buffers()), "buffers would be in 16 bits, and each rank's own"
        self.masters = [nn.Parameter(p.detach().clone()) for p in module.parameters()]  # float32
        self.module, self.group = module.to(dtype), group
        _, self.ranks = rank_and_size(group)
        self.optimizer = optimizer_class(self.masters, **options)
        # bfloat16 reaches as far as float32, so its gradients need no help.
        self.scaling = dtype == torch.float16
        self.scale = LossScale(2.0**16 if self.scaling else 1.0, group=group)

    def step(self, *batch: Any, clip: float = 1.0) -> torch.Tensor:
        """One step with the module's loss of a batch; returns that loss."""
        loss = self.module(*batch)
        self.scale.scaled(loss.float()).backward()
        for parameter, master in zip(self.module.parameters(), self.masters, strict=True):
            assert parameter.grad is not None, "a parameter is unused"
            # 1/n before the sum, so that n gradients cannot overflow together.
            parameter.grad /= self.ranks
            all_reduce(parameter.grad, self.group).wait()
            master.grad, parameter.grad = parameter.grad.float(), None
        if self.scale.unscale(master.grad for master in self.masters if master.grad is not None):
            # After unscaling: before it, the norm would be that of scaled gradients.
            nn.utils.clip_grad_norm_(self.masters, clip)
            self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.module.parameters(), self.masters, strict=True):
                parameter.copy_(master)
                master.grad = None  # gradients in float32 live within a step only
        if self.scaling:
            self.scale.update()
        return loss.detach()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
