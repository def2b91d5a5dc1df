"""Data parallelism, first rung: after backward, all-reduce every gradient.

**Idea.** Every rank has the whole model and its own part of the batch. The gradient of the mean loss over the whole
batch is the mean of the parts' gradients, so the ranks average these and all take the same step.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §2.2.
**Sent.** One all-reduce per parameter, so each rank sends about 2(n−1)/n of the gradients' bytes.
**Cost.** Each rank holds all parameters, gradients and optimizer states, as one device does. It waits for one latency
per parameter, and computes nothing meanwhile.
The full form of the third rung, `minitrain.data_parallel.full.overlapped`, adds unused, frozen and transposed
parameters, buffers, the check that all ranks wrap the same module, and an error where `synchronize()` is forgotten.
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm.messages import Group, all_reduce, broadcast, rank_and_size


class NaiveDataParallel(nn.Module):
    """Averages gradients after backward, one parameter at a time."""

    def __init__(self, module: nn.Module, group: Group = None):
        super().__init__()
        self.module, self.group = module, group
        assert not list(module.buffers()), "each rank would change its buffers by itself: use the full form"
        for parameter in module.parameters():
            # All ranks start from rank 0's weights.
            broadcast(parameter.data, 0, group).wait()

    def forward(self, *inputs):
        return self.module(*inputs)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Once per step: replace every gradient by its mean over the ranks."""
        for parameter in self.module.parameters():
            assert parameter.grad is not None, "a parameter is frozen or unused: use the full form"
            # 1/n before the sum, so that a sum in float16 cannot overflow.
            parameter.grad *= 1 / rank_and_size(self.group)[1]
            # The sum of every rank's 1/n is the mean. The next tensor leaves when this one is done.
            all_reduce(parameter.grad, self.group).wait()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
