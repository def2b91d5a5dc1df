"""ZeRO stage 1: every rank steps its own part of the parameters, with the optimizer states of that part only.

**Idea.** Data parallelism makes the same step n times, with n copies of the optimizer states. Here rank r steps the
r-th part of the parameters, and the ranks then collect each other's parts.

**Source.** Rajbhandari et al. 2020, "ZeRO", §5.1 and §7.2.1. Also called distributed optimizer (Megatron-LM).
**Sent.** A reduce-scatter of the gradients and an all-gather of the parameters in each step, Ψ elements each: together
as much as the all-reduce of data parallelism, however many micro-batches the step has.
**Cost.** Each rank holds all parameters and gradients, its shard of the mean, and 1/n of the optimizer states.
The full form, `minitrain.zero.full.stage1`, adds frozen and unused parameters, several dtypes, parameter groups, master
copies in float32, clipping, state dicts and checks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minitrain.comm.messages import Group, all_gather, rank_and_size, reduce_scatter


class Zero1(nn.Module):
    """A module whose optimizer states are divided: backward as ever, then `synchronize()`, `step()`, `zero_grad()`.

    Args:
        module: The same on all ranks, of one dtype and on one device.
        optimizer_class: One that steps each element by itself, such as `torch.optim.AdamW`.
        group: The ranks that share the batch; None means everyone.
        **options: Given to `optimizer_class`, as `lr=0.1`.
    """

    def __init__(self, module: nn.Module, optimizer_class: Any, group: Group = None, **options: Any):
        super().__init__()
        self.module, self.group = module, group
        rank, self.ranks = rank_and_size(group)
        parameters = list(module.parameters())
        kinds = {(p.dtype, p.requires_grad) for p in (*parameters, *module.buffers())}
        assert kinds == {(parameters[0].dtype, True)}, "frozen, of two dtypes, or with buffers"
        mixing = ("Adafactor", "Adam8bit", "LAMB", "LARS", "SM3")
        assert getattr(optimizer_class, "__name__", "") not in mixing, "it mixes elements"
        elements = sum(p.numel() for p in parameters)
        # Zeros at the end, so that the ranks divide them.
        self.flat = parameters[0].new_zeros(elements + -elements % self.ranks)  # [padded]
        self.gradients = torch.zeros_like(self.flat)  # [padded]
        self.used = set[nn.Parameter]()  # in this step
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            self.flat[start:stop] = parameter.detach().flatten()
            # Both become views, so backward adds where the gradients will be sent from.
            parameter.data = self.flat[start:stop].view_as(parameter)
            parameter.grad = self.gradients[start:stop].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.used.add)
            start = stop
        # The optimizer knows only this shard, a view as well, so its states are 1/n as large.
        self.shard = self.flat.chunk(self.ranks)[rank]  # [padded / ranks]
        self.optimizer = optimizer_class([self.shard], **options)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def synchronize(self) -> None:
        """After the last backward of a step: `shard.grad` is the mean over ranks."""
        # A zero is a gradient too, with which weight decay would change a parameter.
        assert self.used == set(self.module.parameters()), "a parameter is unused"
        first = next(self.module.parameters()).grad
        in_place = first is not None and first.data_ptr() == self.gradients.data_ptr()
        assert in_place, "the gradients are no views any more; use this class's zero_grad()"
        # 1/n before the sum, as DDP does: low precision then cannot overflow.
        self.gradients.mul_(1 / self.ranks)
        # Each rank brings all its gradients, and gets the sum of its own shard.
        self.shard.grad = reduce_scatter(self.gradients, self.group).wait()

    def step(self) -> None:
        """Update this rank's shard, and collect those of the others."""
        self.optimizer.step()
        # Each rank brings its new shard, and all get all, in the parameters' memory.
        all_gather(self.shard, self.group, into=self.flat).wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """To be used in place of `module.zero_grad()`, which would drop the views."""
        self.shard.grad = None
        self.gradients.zero_()
        self.used.clear()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
