"""Loss scaling: multiply the loss so that small gradients survive float16, and divide the gradients before the step.

**Idea.** Float16 ends at 6e-8, and many gradients are smaller. Backward is linear, so a loss of 65,536 times its size
gives gradients of 65,536 times theirs, which float16 can hold. If one of them becomes infinite, the step is skipped on
all ranks and the scale is halved; after many steps without, it is doubled.

**Source.** Micikevicius et al. 2018, "Mixed precision training", §3.2. The hysteresis is Megatron-LM's.
**Sent.** One number per step, in an all-reduce: whether any rank has found infinity or NaN.
**Cost.** One pass over the gradients; skipped steps. bfloat16 has the range of float32 and needs none of it.
torch's own is `torch.amp.GradScaler`, which looks at its own rank's gradients only.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


class LossScale:
    """`scaled(loss).backward()`, then `if unscale(gradients): optimizer.step()`, then `update()`.

    Args:
        every: Steps without an overflow after which the scale is doubled.
        hysteresis: Overflows that are needed before it is halved.
        least: It is never halved below this.
    """

    def __init__(
        self, scale: float = 2.0**16, every: int = 2000, hysteresis: int = 1, least: float = 1.0, group: Group = None
    ):
        self.scale, self.every, self.hysteresis, self.least, self.group = scale, every, hysteresis, least, group
        self.clean, self.left, self.overflow = 0, hysteresis, False

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients in float32 by the scale; whether all of them, on all ranks, are finite."""
        gradients = list(gradients)
        assert all(g.element_size() >= 4 for g in gradients), "what the scale saved would be lost in 16 bits again"
        found = torch.zeros((), device=gradients[0].device)
        for gradient in gradients:
            # A power of two: nothing is rounded.
            gradient /= self.scale
            found = torch.maximum(found, (~gradient.isfinite()).any().float().to(found.device))
        # If one rank alone skipped, its weights would be others from here on.
        self.overflow = bool(all_reduce(found, self.group, op=dist.ReduceOp.MAX).wait())
        return not self.overflow

    def update(self) -> None:
        """Set the scale for the next step."""
        if self.overflow:
            self.clean, self.left = 0, self.left - 1
            # From the first halving on each overflow halves, until the scale has been doubled.
            if self.left <= 0:
                self.scale = max(self.scale / 2, self.least)
        else:
            self.clean += 1
            if self.clean == self.every:
                self.clean, self.left = 0, self.hysteresis
                self.scale *= 2


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
