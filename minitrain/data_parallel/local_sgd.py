"""Local SGD: each rank takes H steps by itself, then all ranks average their parameters.

**Idea.** Data parallelism sends in every step, which a slow network cannot bear. Here ranks send once in H steps, and
what they average is not their gradients but the parameters that H steps have led to. With H = 1 and SGD it is the
same: the mean of θ − ηgᵣ is θ − η times the mean gradient. With H > 1 ranks drift apart between two averages, each
towards the optimum of its own data, and their mean settles elsewhere than at the optimum of all.

**Source.** Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1.
**Sent.** One all-reduce of the parameters, S bytes, in H steps.
**Cost.** Nothing in memory. The larger H, the more samples it takes to the same loss. Momentum and other states of the
optimizer stay on their rank. Also called FedAvg (McMahan et al. 2017), periodic averaging.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, all_reduce, rank_and_size


@torch.no_grad()
def average(tensors: Iterable[Tensor], group: Group = None) -> None:
    """Replace each tensor by its mean over the ranks."""
    tensors = list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors])  # [elements of all]
    # 1/n before the sum, so that a sum in float16 cannot overflow.
    flat *= 1 / rank_and_size(group)[1]
    # One all-reduce carries all tensors.
    all_reduce(flat, group).wait()
    for tensor, mean in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


class LocalSGD(nn.Module):
    """Averages parameters after every H-th step of the optimizer.

    Args:
        module: Its parameters begin with the same values on all ranks.
        every: H.
        group: The ranks; None means everyone.
    """

    def __init__(self, module: nn.Module, every: int, group: Group = None):
        super().__init__()
        assert every >= 1, f"every={every} must be at least 1, the number of steps between two averages"
        assert not list(module.buffers()), "each rank would keep buffers of its own, which nothing averages"
        self.module, self.every, self.group, self.steps = module, every, group, 0

    def forward(self, *inputs):
        return self.module(*inputs)

    def after_step(self) -> None:
        """Call it after each step of the optimizer, whose gradients are this rank's own."""
        self.steps += 1
        if self.steps % self.every == 0:
            # A mean of equal numbers may round, so frozen parameters are left alone.
            average([p for p in self.module.parameters() if p.requires_grad], self.group)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
