"""Data parallelism, first rung: after backward, all-reduce every gradient.

**Idea.** Every rank has the whole model and its own part of the batch. The gradient of the mean loss over the whole
batch is the mean of the parts' gradients, so the ranks average these and all take the same step.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §2.2.
**Sent.** One all-reduce per parameter, so each rank sends about 2(n−1)/n of the gradients' bytes.
**Cost.** Each rank holds all parameters, gradients and optimizer states, as one device does. It waits for one latency
per parameter, and computes nothing meanwhile.
The full form, `minitrain.data_parallel.full.naive`, adds unused, frozen and transposed parameters, buffers, the check
that all ranks wrap the same module, and a model that can be freed: torch's hooks keep this one alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minitrain.comm.messages import Group, all_reduce, rank_and_size


class NaiveDataParallel(nn.Module):
    """Averages gradients after backward, one parameter at a time."""

    def __init__(self, module: nn.Module, group: Group = None):
        super().__init__()
        self.module, self.group, self.local, self.own = module, group, False, False
        rank, self.ranks = rank_and_size(group)
        assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form"
        assert not list(module.buffers()), "each rank would change its buffers by itself: use the full form"
        for parameter in module.parameters():
            if rank != 0:
                parameter.data.zero_()
            # Rank 0's values plus zeros from all others: every rank starts with rank 0's.
            all_reduce(parameter.data, group).wait()
            # Called with the parameter once backward has added to its .grad.
            parameter.register_post_accumulate_grad_hook(self.arrive)

    def forward(self, *inputs):
        assert not self.own or not torch.is_grad_enabled(), "synchronize() was left out after the last backward"
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For all micro-batches but the last: backward only adds to this rank's gradients."""
        before, self.local = self.local, True
        yield
        self.local = before

    def arrive(self, parameter: nn.Parameter) -> None:
        """The hook: a gradient has come, this rank's own until `synchronize()`."""
        self.own = not self.local

    @torch.no_grad()
    def synchronize(self) -> None:
        """Replace every gradient by its mean over the ranks; call it once, after the last backward."""
        self.own = False
        for parameter in self.module.parameters():
            assert parameter.grad is not None, "a parameter is unused: use the full form"
            # Before the sum, and not after it, so that a sum in float16 cannot overflow.
            parameter.grad *= 1 / self.ranks
            # The sum of every rank's 1/n is the mean. The next tensor leaves when this one is done.
            all_reduce(parameter.grad, self.group).wait()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
