"""Parameters offloaded: stage 3 whose shards wait on the host or on disk, and are fetched in order of use.

**Idea.** Stage 3 needs each block's parameters in an order that is known. So a rank's shard of a block waits in the
host's memory, or in a file. While a block runs, a thread fetches the shard of the block that comes next.
**Source.** Cui et al. 2016, "GeePS", §3, for the idea; Rajbhandari et al. 2021, "ZeRO-Infinity", §5 and §6, with disks.
**Sent.** Between ranks as in stage 3. In each micro-batch 2Ψ/n elements of parameters come to the device, for forward
and for backward, and Ψ/n of gradients leave it. The step is the host's, as in ZeRO-Offload.
**Cost.** The device holds two blocks' parameters, the second of them still arriving, and one block's gradients. The
host holds gradients and optimizer states, and the host or the disk the parameters, 1/n of each. With a fast disk the
optimizer states may lie in files as well.
Also called ZeRO-Infinity, `offload_param` (DeepSpeed).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minitrain.comm.messages import Group, Handle, all_gather, all_reduce, rank_and_size, reduce_scatter
from minitrain.zero import stage3


class Unit(stage3.Unit):
    """A block whose shard waits outside the device."""

    reader: ThreadPoolExecutor  # the same for all units, and so is the stream of its copies, if the device is a GPU
    side: Any

    def __init__(self, block: nn.Module, group: Group = None):
        super().__init__(block, group)
        # A copy even where the device is a CPU, so that both memories can be told apart. It is pinned for a GPU, which
        # then copies while it computes.
        self.shard = torch.empty_like(self.shard, device="cpu", pin_memory=self.flat.is_cuda).copy_(self.shard)

    def prefetch(self) -> Handle:
        """Start to fetch the shard; `wait()` then gathers the others."""
        if self.arriving is None:
            self.flat.untyped_storage().resize_(self.flat.nbytes)
            whole = self.flat.data
            mine = whole.chunk(self.ranks)[rank_and_size(self.group)[0]]
            if self.side:
                # Earlier blocks may still use this room.
                self.side.wait_stream(torch.cuda.current_stream())
            # Host or disk to device, in a thread, while the block before runs.
            fetched = self.reader.submit(mine.copy_, self.shard)
            # Each rank brings its shard, and all get the whole parameters. Not in the thread: all ranks must start
            # their collectives in one order.
            self.arriving = Handle((), whole, lambda: all_gather(fetched.result(), self.group, whole).wait())
        return self.arriving

    def after_backward(self, flat: Any) -> None:
        """The hook: free the parameters, and keep this rank's shard of the gradient on the host."""
        self.reshard()
        gradient, flat.grad = flat.grad.mul_(1 / self.ranks), None
        # Each rank brings all gradients of the unit, and gets the sum of its own shard.
        mean: Any = reduce_scatter(gradient, self.group).wait()  # [padded / ranks]
        # Device to host, where it is added to that of earlier micro-batches.
        mean = mean.to("cpu", copy=True)
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)


class ParameterOffload(stage3.Zero3):
    """As `Zero3`, with this rank's shards on the host, or in files in `folder`, where they stay."""

    unit = Unit

    def __init__(
        self, module: nn.Sequential, optimizer_class: Any, group: Group = None, folder: str = "", **options: Any
    ):
        # The optimizer steps on the host; where shards are mapped files, it changes the files.
        super().__init__(module, optimizer_class, group, **options)
        side = torch.cuda.Stream() if self.units[0].flat.is_cuda else None
        # With a stream the thread also gets this rank's GPU: a new thread's is number 0.
        reader = ThreadPoolExecutor(1, initializer=(lambda: torch.cuda.set_stream(side)) if side else None)
        for unit in self.units:
            unit.reader, unit.side = reader, side
        if folder:
            map_files(self.units, folder, group)


def map_files(units: list[Unit], folder: str, group: Group) -> None:
    """Move the shards to files, which are mapped into memory: reading a tensor reads the disk."""
    paths = [Path(folder, f"rank{rank_and_size()[0]}.block{number}") for number in range(len(units))]
    problem = None
    try:
        for path, unit in zip(paths, units, strict=True):
            # Written, so that the file has its room: a mapped file that finds the disk full later ends the program.
            path.write_bytes(unit.shard.view(torch.uint8).numpy().data)
    except OSError as error:
        problem = error
    full = torch.tensor(float(problem is not None), device=units[0].flat.device)
    # One rank whose disk is full stops all: the others would wait for it.
    all_reduce(full, group).wait()
    if full:
        for path in paths:
            path.unlink(missing_ok=True)
        size = sum(unit.shard.nbytes for unit in units)
        reason = problem or "it was another rank's disk"
        raise OSError(f"folder={folder!r} cannot hold {size:,} bytes ({reason}); use another disk, or more ranks")
    for path, unit in zip(paths, units, strict=True):
        # The same tensor for the optimizer, with its numbers in the file.
        unit.shard.data = torch.from_file(str(path), True, len(unit.shard), dtype=unit.shard.dtype)  # [padded / ranks]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
