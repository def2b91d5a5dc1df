"""Resharding: a tensor saved by some ranks, each its shard, is loaded by others who cut it elsewhere.

**Idea.** A file says where its shard lies in the unsharded tensor, and nothing about ranks. So whoever loads compares
its own region with that of each file, and copies the overlap.

**Source.** PyTorch, torch.distributed.checkpoint; universal checkpointing (DeepSpeed).
**Sent.** One element, as a barrier. Tensors go through a file system that all ranks see.
**Cost.** Saving holds one copy of the shard. Loading reads each element of the shard once, from files that are mapped
into memory, and holds a flag per element.
The full form, `minitrain.checkpointing.checkpoint`, adds whole trainings, several regions per rank, replicas that are
written once, checkpoints that are complete or absent, checksums, and checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, place


def save(folder: Path, shard: Tensor, offsets: Sequence[int], group: Group = None) -> None:
    """Write this rank's shard, which begins at `offsets` in the unsharded tensor; every rank calls it."""
    rank, ranks = place(group)
    folder.mkdir(parents=True, exist_ok=True)
    # A copy, because the file of a view would have all that the view is cut from.
    saved = {"offsets": tuple(offsets), "shard": shard.detach().to("cpu", copy=True)}
    torch.save(saved, folder / f"{rank}.pt")
    if rank == 0:
        # Files of an earlier save by more ranks may still be here; they don't count.
        torch.save(ranks, folder / "ranks.pt")
    # A barrier: when it is passed, all files are complete.
    all_reduce(torch.zeros(1, device=shard.device), group).wait()


@torch.no_grad()
def load(folder: Path, shard: Tensor, offsets: Sequence[int]) -> Tensor:
    """Fill this rank's shard, however the tensor was cut; any number of ranks may call it, each by itself."""
    filled = torch.zeros(shard.shape, dtype=torch.bool)
    for rank in range(torch.load(folder / "ranks.pt", weights_only=True)):
        # Mapped: of the numbers only those that are copied are read from the disk.
        saved = torch.load(folder / f"{rank}.pt", mmap=True, weights_only=True)
        source, target = overlap(saved["offsets"], saved["shard"].shape, offsets, shard.shape)
        # There is no overlap, or it is a replica of what another rank wrote.
        if filled[target].all():
            continue
        shard[target] = saved["shard"][source].to(shard.device)
        filled[target] = True
    # To count elements would not do: replicas counted twice would hide holes.
    assert filled.all(), f"{folder} lacks {int((~filled).sum())} elements of this shard"
    return shard


def overlap(
    offsets: Sequence[int], sizes: Sequence[int], other: Sequence[int], others: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where two regions overlap, as each of them indexes it; slices without elements where they don't."""
    mine, theirs = [], []
    for start, size, begin, length in zip(offsets, sizes, other, others, strict=True):
        first = max(start, begin)
        last = max(first, min(start + size, begin + length))
        mine.append(slice(first - start, last - start))
        theirs.append(slice(first - begin, last - begin))
    return tuple(mine), tuple(theirs)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
