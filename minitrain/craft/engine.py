"""Engine: the training's parallelism around any model, in three calls.

**Idea.** A user has a model and a loop. `engine(batch)`, `engine.backward(loss)`, `engine.step()` take the places of
`model(batch)`, `loss.backward()`, `optimizer.step()`, and behind them are micro-batches, the mean over ranks, and
clipping. The model does not know of ranks. So an engine can divide what surrounds a model: batch, gradients, states of
the optimizer. What happens inside of a layer it cannot: for tensor parallelism the layers have to be written for it, as
Megatron-LM's are.

**Source.** Rasley et al. 2020, "DeepSpeed"; its names are those of `deepspeed.initialize`'s engine.
**Sent.** One all-reduce of the gradients in the last micro-batch's `step()`.
**Cost.** As data parallelism: each rank has all of the model. Also called `Accelerator` (Hugging Face), `Fabric`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group
from minitrain.data_parallel.local_sgd import average


class Engine:
    """Call all three for each micro-batch; the last one's `step()` is the optimizer's.

    Every step uses all parameters that are not frozen, and clips their gradient to the
    norm `clip`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        micro_batches: int = 1,
        clip: float = 1.0,
        group: Group = None,
    ):
        assert not list(model.buffers()), "each rank would keep buffers of its own, which nothing averages"
        self.model, self.optimizer, self.group = model, optimizer, group
        self.micro_batches, self.clip, self.seen = micro_batches, clip, 0

    def __call__(self, *batch: Any) -> Any:
        return self.model(*batch)

    def backward(self, loss: Tensor) -> None:
        """Of one micro-batch, whose loss is a mean."""
        assert self.seen < self.micro_batches, "step() was left out after the last micro-batch"
        # Divided, so that gradients add up to those of the mean over all micro-batches.
        (loss / self.micro_batches).backward()
        self.seen += 1

    def step(self) -> bool:
        """Whether this was the last micro-batch, and the optimizer has stepped."""
        if self.seen < self.micro_batches:
            return False
        trained = [p for p in self.model.parameters() if p.requires_grad]
        gradients = [p.grad for p in trained if p.grad is not None]
        # Another rank may have used another one of the same size, and they would be averaged.
        assert len(gradients) == len(trained), "a parameter is unused in this step"
        # The only message. From here on all ranks do the same.
        average(gradients, self.group)
        # The norm is that of the whole gradient, which every rank has now.
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen = 0
        return True


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
