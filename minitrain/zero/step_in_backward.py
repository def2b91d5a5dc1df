"""The optimizer's step inside backward: each gradient is used and freed as soon as it has arrived.

**Idea.** Backward makes one gradient after the other, the last layer's first. If a parameter is stepped as soon as its
gradient is complete, nobody needs this gradient again, and there is never more than one layer's.

**Source.** Lv et al. 2023, "Full parameter fine-tuning for large language models with limited resources", §3.2: LOMO,
which is SGD in this way. PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass"
has it for any optimizer, with the hook that is used here.
**Cost.** Gradients take the bytes of the largest layer's in place of all Ψ. Weights have the same bits. But nothing may
need all gradients before the first step: no clipping by the global norm, no accumulation over micro-batches, no step
that is left out because one gradient overflowed. (LOMO goes backward twice, the first time for the norm.)
With data parallelism the hook would all-reduce the gradient first, and backward would wait for it.
Also called optimizer in backward, fused backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class StepInBackward(nn.Module):
    """A module whose backward also makes the optimizer's step; used like any module and its optimizer."""

    def __init__(self, module: nn.Module, optimizer_class: Any, **options: Any):
        super().__init__()
        self.module = module
        # An optimizer steps all its parameters at once, so each parameter gets one of its own.
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizers: dict[Tensor, Any] = {
            parameter: optimizer_class([parameter], **options) for parameter in trained
        }
        self.stepped: set[Tensor] = set()
        for parameter in self.optimizers:
            # Called once backward has added all that it has to this .grad; a tied weight's is complete, too.
            parameter.register_post_accumulate_grad_hook(self.arrive)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def arrive(self, parameter: Tensor) -> None:
        """The hook: backward has read this weight for the last time, so it may change."""
        # What a first micro-batch would be added to has been used and freed.
        assert parameter not in self.stepped, "a second backward in a step: gradients cannot be accumulated"
        self.stepped.add(parameter)
        self.optimizers[parameter].step()
        parameter.grad = None

    def step(self) -> None:
        """Ends a step, which backward has made already."""
        self.stepped.clear()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
