"""Master weights: an update too small for a weight of 16 bits is added to a copy of the weight in 32.

**Idea.** A number of 16 bits has neighbors, and an update of less than half the way to the next one is rounded away,
every time. So the optimizer steps a copy in float32, where small updates add up, and the model gets the copy rounded.

**Source.** Micikevicius et al. 2018, "Mixed precision training", §3.1.
**Cost.** 4 bytes per parameter for the copy, in addition to the model's own 2.
The full form is the `compute_dtype` of `minitrain.zero`, whose ranks hold the copy of their own shard alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class MasterWeights:
    """An optimizer that steps copies in float32 of parameters that have fewer bits.

    Args:
        module: In 16 bits, or brought to them by `module.to(torch.bfloat16)` after this has copied its parameters.
        optimizer_class: Such as `torch.optim.AdamW`.
        **options: Given to `optimizer_class`, as `lr=0.1`.
    """

    def __init__(self, module: nn.Module, optimizer_class: Any, **options: Any):
        self.parameters = list(module.parameters())
        assert all(p.element_size() <= 4 for p in self.parameters), "a copy in float32 would round float64"
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.parameters]
        self.optimizer = optimizer_class(self.masters, **options)

    @torch.no_grad()
    def step(self) -> None:
        """Step the copies with the parameters' gradients, and round the copies into the parameters."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            # 16 bits fit into 32 exactly, so nothing is lost here.
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            # The only rounding; each time it starts from the exact sum.
            parameter.copy_(master)
            master.grad = None  # as large as the copy, and lives within a step only

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
