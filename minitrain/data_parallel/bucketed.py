"""Data parallelism, second rung: gradients travel together, in flat buckets.

**Idea.** Each all-reduce pays a latency, however small the tensor, and most parameters are small. So gradients are
copied side by side into flat tensors, and one all-reduce carries a whole bucket.

**Source.** Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", §3.2.2.

**What each rank holds.** As before, and the buckets: once more the size of the gradients.

**What is sent, when and why.** After backward, one all-reduce for each bucket; all are started before the first is
waited for. Parameters are packed in reverse order, since backward reaches the last layers first, which only matters on
the next rung; each dtype and each device has buckets of its own. And the flags of the first rung.

**Cost.** The same bytes in fewer messages: `minitrain.costs.data_parallel.buckets` says how many, at most
⌈gradient bytes / bucket size⌉ for each dtype.

**Also called.** Gradient bucketing (DDP), tensor fusion (Horovod), grad buffers (Megatron-LM).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.collectives import native, ring
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import lesson
from minitrain.data_parallel.replica import Collectives, Replica
from minitrain.runtime import Claim, World, run
from minitrain.runtime.messages import Handle


@dataclass(eq=False)
class Bucket:
    """A flat tensor, and the parameters whose gradients lie in it side by side.

    Attributes:
        parameters: By name, in the order in which they lie.
        flat: What is sent.
        views: For each parameter its part of `flat`, in the parameter's shape.
    """

    parameters: dict[str, nn.Parameter]
    flat: Shaped[Tensor, " elements"]
    views: dict[str, Tensor]

    @classmethod
    def of(cls, parameters: dict[str, nn.Parameter]) -> Bucket:
        """Allocate the bucket of these parameters, all of one dtype and device."""
        first = next(iter(parameters.values()))
        sizes = [parameter.numel() for parameter in parameters.values()]
        flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        parts = zip(parameters.items(), flat.split(sizes), strict=True)
        return cls(parameters, flat, {name: part.view(parameter.shape) for (name, parameter), part in parts})


def pack(parameters: dict[str, nn.Parameter], bucket_megabytes: float) -> list[Bucket]:
    """Pack parameters into buckets, the last parameter first; a bucket is closed when it has reached the size.

    So a bucket may be larger than asked for by less than its last parameter, and a parameter is never cut.
    """
    buckets: list[dict[str, nn.Parameter]] = []
    filling: dict[tuple[torch.dtype, torch.device], dict[str, nn.Parameter]] = {}
    for name, parameter in reversed(parameters.items()):
        kind = (parameter.dtype, parameter.device)
        bucket = filling.setdefault(kind, {})
        if not bucket:
            buckets.append(bucket)
        bucket[name] = parameter
        if sum(member.nbytes for member in bucket.values()) >= bucket_megabytes * 2**20:
            del filling[kind]
    return [Bucket.of(bucket) for bucket in buckets]


class BucketedDataParallel(Replica):
    """Averages gradients after backward, a bucket at a time.

    Attributes:
        buckets: The buckets, in the order in which they are sent.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        bucket_megabytes: float = 25.0,
        collectives: Collectives = native,
    ):
        super().__init__(module, group, bucket_megabytes, collectives)
        self.buckets = pack(self.trainable, bucket_megabytes)

    @torch.no_grad()
    def synchronize(self) -> None:
        started = [self._start(bucket) for bucket in self.buckets]
        used = self._used_anywhere()
        for bucket, handle in zip(self.buckets, started, strict=True):
            handle.wait()
            self._hand_back(bucket, used)

    def _start(self, bucket: Bucket) -> Handle:
        """Copy this rank's gradients into a bucket and start its all-reduce."""
        for name, view in bucket.views.items():
            gradient = self._gradient(name)
            if gradient is None:
                view.zero_()  # this rank adds nothing
            else:
                # Divided before the sum, as DDP does: low precision then cannot overflow, and results are the same.
                torch.mul(gradient, 1 / self.ranks, out=view)
        # One all-reduce: every rank ends with the sum of all ranks' 1/n.
        return self.collectives.all_reduce(bucket.flat, self.group, check=False)

    def _hand_back(self, bucket: Bucket, used: dict[str, bool]) -> None:
        """Copy the means of a bucket to the gradients of its parameters."""
        for name, parameter in bucket.parameters.items():
            if not used[name]:
                continue  # no rank used it: a gradient of zeros would move it where an optimizer has momentum
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(bucket.views[name])


def demo(world: World, layers: int = 2, hidden: int = 32) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """

    def wrap(bucket_megabytes: float, collectives: Collectives = native) -> BucketedDataParallel:
        # Every rank draws other weights; rank 0's are what all start from.
        module = lesson.small_gpt(world, world.rank, layers, hidden)
        return BucketedDataParallel(module, None, bucket_megabytes, collectives)

    claims = []
    for kilobytes in (1, 8, 32, 128, 25600):
        packing = f"buckets of {kilobytes:,} KiB"
        claims.append(lesson.calls(world, wrap(kilobytes / 1024), 1024 * kilobytes, "B + 1", packing))
    model = wrap(lesson.BUCKET / 2**20)
    size = sum(parameter.nbytes for parameter in model.parameters())
    most = costs.most_buckets(size, lesson.BUCKET)
    source = f"{lesson.PAPER}, §3.2.2"
    claims.append(Claim("buckets of 32 KiB", "⌈S / 32 KiB⌉", most, len(model.buckets), "1", source, relation="<="))
    claims += lesson.volume(world, model, wrap(lesson.BUCKET / 2**20, ring), lesson.BUCKET)
    claims.append(lesson.mean_of_parts(world, model, lesson.small_gpt(world, 0, layers, hidden)))
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims


if __name__ == "__main__":
    run(demo)
