"""Data parallelism, second rung: gradients travel together, in flat buckets.

**Idea.** Every all-reduce costs a latency, however small its tensor, and most parameters are small. So gradients are
copied one after the other into flat tensors, and one all-reduce carries them.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §3.2.2.
**Sent.** One all-reduce per bucket, at most ⌈gradient bytes / bucket size⌉ of them; the bytes are those of `naive`.
**Cost.** One latency per bucket; and memory for the buckets, as large as the gradients, while they travel.
The full form of the next rung, `minitrain.data_parallel.full.overlapped`, adds unused and frozen parameters, buckets
for each dtype and device, buffers, the check that all ranks wrap the same module, and a model that can be freed.
Also called gradient bucketing, fusion buffer (Horovod).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from minitrain.comm.messages import Group, Handle, all_reduce, broadcast, rank_and_size

Bucket = list[nn.Parameter]


def start_from_rank_0(module: nn.Module, group: Group) -> None:
    """Give all ranks the parameters of rank 0."""
    assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form"
    assert not list(module.buffers()), "each rank would change its buffers by itself: use the full form"
    for parameter in module.parameters():
        broadcast(parameter.data, 0, group).wait()


def pack(module: nn.Module, bucket_megabytes: float) -> list[Bucket]:
    """The parameters in buckets; a bucket is closed when it has reached the size."""
    assert len({p.dtype for p in module.parameters()}) == 1, "a bucket has one dtype: use the full form"
    buckets: list[Bucket] = [[]]
    # The last parameter first, because backward reaches it first; the next rung uses that.
    for parameter in reversed(list(module.parameters())):
        if buckets[-1] and sum(member.nbytes for member in buckets[-1]) >= bucket_megabytes * 2**20:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def start(bucket: Bucket, group: Group) -> Handle:
    """Copy a bucket's gradients into a flat tensor, and send it."""
    gradients = [p.grad.flatten() for p in bucket if p.grad is not None]
    assert len(gradients) == len(bucket), "a parameter is unused: use the full form"
    flat = torch.cat(gradients)  # (elements of the bucket,)
    # 1/n before the sum, so that a sum in float16 cannot overflow.
    flat *= 1 / rank_and_size(group)[1]
    # One all-reduce for the whole bucket: every rank ends with the sum of all ranks' 1/n.
    return all_reduce(flat, group)


def hand_back(bucket: Bucket, flat) -> None:
    """Make the means in a flat tensor the gradients."""
    means = flat.split([parameter.numel() for parameter in bucket])
    for parameter, mean in zip(bucket, means, strict=True):
        # A view: the bucket takes the place of the gradients that were copied into it.
        parameter.grad = mean.view_as(parameter)  # (elements,) -> the parameter's shape


class BucketedDataParallel(nn.Module):
    """Averages gradients after backward, a bucket at a time."""

    def __init__(self, module: nn.Module, group: Group = None, bucket_megabytes: float = 25.0):
        super().__init__()
        self.module, self.group, self.local, self.own = module, group, False, False
        start_from_rank_0(module, group)
        self.buckets = pack(module, bucket_megabytes)
        for parameter in module.parameters():
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
        # All buckets are on their way before the first is waited for.
        handles = [start(bucket, self.group) for bucket in self.buckets]
        for bucket, handle in zip(self.buckets, handles, strict=True):
            hand_back(bucket, handle.wait())


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
