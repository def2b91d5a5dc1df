"""Data parallelism, third rung: buckets travel while backward still runs.

**Idea.** Backward reaches the last layers first, and their gradients are final long before those of the first layers.
So a hook starts a bucket's all-reduce when its last gradient has arrived.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §3.2.3.
**Sent.** The buckets of `bucketed`.
**Cost.** As long as the network is faster than backward, only the last bucket is waited for.
The full form, `minitrain.data_parallel.full.overlapped`, adds unused and frozen parameters, buckets for each dtype and
device, buffers, checks on every rank, and a model that can be freed: torch's hooks keep this one alive.
Also called DDP, distributed data parallel (PyTorch).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minitrain.comm.messages import Group, Handle
from minitrain.data_parallel.bucketed import hand_back, pack, start, start_from_rank_0


class DataParallel(nn.Module):
    """Averages gradients a bucket at a time, each as soon as backward has filled it."""

    def __init__(self, module: nn.Module, group: Group = None, bucket_megabytes: float = 25.0):
        super().__init__()
        self.module, self.group, self.local = module, group, False
        start_from_rank_0(module, group)
        self.buckets = pack(module, bucket_megabytes)
        self.number = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.begin_step()
        for parameter in module.parameters():
            # Called with the parameter once backward has added to its .grad.
            parameter.register_post_accumulate_grad_hook(self.arrive)

    def begin_step(self) -> None:
        self.started: list[Handle] = []  # the buckets that are on their way
        self.missing = [set(bucket) for bucket in self.buckets]  # gradients still to come

    def forward(self, *inputs):
        assert not self.started or not torch.is_grad_enabled(), "synchronize() was left out after the last backward"
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For all micro-batches but the last: backward only adds to this rank's gradients."""
        before, self.local = self.local, True
        yield
        self.local = before

    def arrive(self, parameter: nn.Parameter) -> None:
        """The hook: a gradient has come."""
        missing = self.missing[self.number[parameter]]
        assert parameter in missing, "a second backward in a step: put all but the last under no_sync()"
        if self.local:
            return
        missing.remove(parameter)
        # Buckets leave in one order on all ranks, so a full one waits for those before it:
        # all-reduces have no names, the k-th of one rank meets the k-th of the others.
        while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self.send_next()

    @torch.no_grad()
    def send_next(self) -> None:
        # One all-reduce for this bucket; backward goes on while it travels.
        self.started.append(start(self.buckets[len(self.started)], self.group))

    @torch.no_grad()
    def synchronize(self) -> None:
        """Wait until every gradient is its mean over the ranks; call it once, after the last backward."""
        # All have left by now, unless the last backward was under no_sync() too.
        while len(self.started) < len(self.buckets):
            self.send_next()
        for bucket, handle in zip(self.buckets, self.started, strict=True):
            hand_back(bucket, handle.wait())
        self.begin_step()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
