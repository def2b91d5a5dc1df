"""Data parallelism, first rung: after backward, all-reduce every gradient.

**Idea.** Every rank holds the whole model and computes the gradient of its own part of the batch. The gradient of a
mean over the whole batch is the mean of the parts' gradients, so ranks average them and all take the same step.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §2.2 and §3.2.1.

**What each rank holds.** All parameters, gradients and optimizer states: memory is that of one device.

**What is sent, when and why.** After backward, one all-reduce for each parameter, in order, so that every rank has the
mean. And one of a flag for each parameter: a parameter that some ranks did not use counts as zeros there, and one that
nobody used is left alone.

**Cost.** Bytes: `minitrain.costs.data_parallel.naive_ring_traffic`, about twice the gradients' size, whatever the
number of ranks. Time: `step_time` without overlap; a latency for each parameter, and all of it waited for.

**Also called.** Synchronous data parallelism, distributed synchronous SGD; `DataParallel` in Li et al.'s first sketch.
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.collectives import ring
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import lesson
from minitrain.data_parallel.replica import Replica
from minitrain.runtime import Claim, World, run


class NaiveDataParallel(Replica):
    """Averages gradients after backward, one parameter at a time. `bucket_megabytes` is there for the next rungs."""

    @torch.no_grad()
    def synchronize(self) -> None:
        self._check_frozen()
        used = self._used_anywhere()
        for name, parameter in self.trainable.items():
            if not used[name]:
                continue
            gradient = self._gradient(name)
            mean = torch.zeros_like(parameter) if gradient is None else gradient * (1 / self.ranks)
            mean = mean.contiguous()
            # The sum of every rank's 1/n: one all-reduce for this parameter, waited for before the next is started.
            self.collectives.all_reduce(mean, self.group, check=False).wait()
            parameter.grad = mean

    def _used_anywhere(self) -> dict[str, bool]:
        """Which parameters have a gradient on at least one rank."""
        used = {name: parameter.grad is not None for name, parameter in self.trainable.items()}
        if not used:
            return {}
        device = next(iter(self.trainable.values())).device
        flags = torch.tensor(list(used.values()), dtype=torch.int32, device=device)
        # One small all-reduce: a sum above 0 tells every rank that some rank has a gradient for this parameter.
        self.collectives.all_reduce(flags, self.group, check=False).wait()
        return {name: count > 0 for name, count in zip(used, flags.tolist(), strict=True)}


def demo(world: World, layers: int = 1, hidden: int = 32) -> list[Claim]:
    """All-reduces every gradient of a small GPT; the table shows calls, bytes, and equality with one device.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    # Every rank draws other weights; rank 0's are what all start from.
    model = NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden))
    through_ring = NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), collectives=ring)
    sizes = lesson.sizes(model)
    predicted = costs.naive_ring_traffic(sizes, world.size, world.rank)
    formula = "Σ over tensors of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + 4P)"
    # One parameter in each of DDP's buckets: both then make the same calls with the same numbers.
    modules: list[nn.Module] = [lesson.WithSpare(lesson.small_gpt(world, 0, layers, hidden)) for _ in range(2)]
    claims = [
        lesson.calls(world, model, costs.naive_all_reduces(sizes), "P + 1", "one for each parameter"),
        lesson.payload(world, model, costs.naive_payload(sizes), "S + 4P"),
        *lesson.traffic(world, through_ring, predicted, formula, "2(n−1)(P + 1)"),
        lesson.mean_of_parts(world, model, lesson.small_gpt(world, 0, layers, hidden)),
        *lesson.like_ddp(world, NaiveDataParallel, modules, None, 1e-6),
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims


if __name__ == "__main__":
    run(demo)
