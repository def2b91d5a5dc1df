"""ZeRO stage 2: gradients are divided as well, while backward runs.

**Idea.** A rank steps its own shards only, so it needs the mean gradients of these only. As soon as backward has made a
gradient it is reduce-scattered, this rank's shard of it is kept, and the rest is dropped.

**Source.** Rajbhandari et al. 2020, "ZeRO", §5.2 and §7.2.1. FSDP calls it SHARD_GRAD_OP.
**Sent.** For each parameter a reduce-scatter in each micro-batch and an all-gather in each step. With A micro-batches
these are (A + 1)Ψ elements, because a rank that keeps one shard cannot add up the others.
**Cost.** Each rank holds all parameters, 1/n of gradients and optimizer states, and in backward the gradient that is
under way and the next one. All ranks must use the same parameters in the same order.
The full form, `minitrain.zero.full.stage2`, adds one message for a whole unit, unused parameters, several dtypes,
parameter groups, clipping, state dicts and checks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from minitrain.comm.messages import Group, all_gather, rank_and_size, reduce_scatter


class Zero2(nn.Module):
    """A module whose gradients and optimizer states are divided; arguments and use as in `Zero1`."""

    def __init__(self, module: nn.Module, optimizer_class: Any, group: Group = None, **options: Any):
        super().__init__()
        self.module, self.group = module, group
        assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form"
        assert not list(module.buffers()), "each rank would change its buffers by itself: use the full form"
        mixing = ("Adafactor", "Adam8bit", "LAMB", "LARS", "SM3")
        assert getattr(optimizer_class, "__name__", "") not in mixing, "it mixes elements: use the full form"
        self.rank, self.ranks = rank_and_size(group)
        self.flats: list[Tensor] = []
        self.under_way: Any = None  # a parameter's number, and the handle of its gradient
        for number, parameter in enumerate(module.parameters()):
            self.flats.append(self.padded(parameter.detach()))
            # The parameter becomes a view, so that the all-gather reaches it.
            parameter.data = self.flats[-1][: parameter.numel()].view_as(parameter)
            # Unlike a hook on the tensor, this one finds the gradient in `.grad`.
            parameter.register_post_accumulate_grad_hook(partial(self.reduce, number))
        # The optimizer knows only the shards, views as well, so its states are 1/n as large.
        self.shards = [self.shard_of(flat) for flat in self.flats]
        self.optimizer = optimizer_class(self.shards, **options)

    def padded(self, tensor: Tensor) -> Tensor:
        """A flat copy, with zeros at the end so that the ranks divide it."""
        return nn.functional.pad(tensor.flatten(), (0, -tensor.numel() % self.ranks))

    def shard_of(self, flat: Tensor) -> Tensor:
        return flat.chunk(self.ranks)[self.rank]  # [padded / ranks]

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def reduce(self, number: int, parameter: Any) -> None:
        """The hook: send a gradient, and drop it."""
        # Only one is under way. If they didn't wait for each other, all would be held.
        self.synchronize()
        # 1/n before the sum, as DDP does: low precision then cannot overflow.
        gradient = self.padded(parameter.grad.mul_(1 / self.ranks))  # [padded]
        parameter.grad = None
        # Each rank brings its whole gradient, and gets the sum of its own shard.
        self.under_way = number, reduce_scatter(gradient, self.group)

    def synchronize(self) -> None:
        """Wait for the gradient under way; after the last backward, all have arrived."""
        if self.under_way is not None:
            number, handle = self.under_way
            self.under_way = None
            self.keep(number, handle.wait())

    def keep(self, number: int, mean: Tensor) -> None:
        """Add this rank's shard of a gradient to those of earlier micro-batches."""
        shard = self.shards[number]
        shard.grad = mean if shard.grad is None else shard.grad.add_(mean)

    def step(self) -> None:
        """Update this rank's shards, and collect those of the others."""
        # Ranks that used different ones have averaged gradients of different parameters.
        assert all(shard.grad is not None for shard in self.shards), "a parameter is unused: use the full form"
        self.optimizer.step()
        self.gather()

    def gather(self) -> None:
        for flat in self.flats:
            # Each rank brings its new shard, and all get all, in the parameter's memory.
            all_gather(self.shard_of(flat), self.group, into=flat).wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
