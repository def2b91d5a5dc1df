"""Resharding: a tensor that some ranks saved, each its shard, is loaded by other ranks that cut it differently.

**Idea.** A file says where its shard lies in the unsharded tensor, and nothing about how many ranks there were. So a
rank that loads compares its own region of the tensor with the region in each file, and copies the overlap.

**Source.** PyTorch, torch.distributed.checkpoint; universal checkpointing (DeepSpeed).
**Sent.** One element, as a barrier. Tensors go through a file system that all ranks see.
**Cost.** Saving holds one copy of the shard. Loading reads each element of the shard once, from files that are mapped
into memory, and holds one flag per element.
The full form, `minitrain.checkpointing.checkpoint`, adds whole trainings, several regions per rank, replicas that are
written once, checkpoints that are complete or absent, checksums, and checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, rank_and_size


def save(folder: Path, shard: Tensor, offsets: Sequence[int], group: Group = None) -> None:
    """Write this rank's shard, which begins at `offsets` in the unsharded tensor; every rank calls it."""
    rank, ranks = rank_and_size(group)
    folder.mkdir(parents=True, exist_ok=True)
    # A copy, because torch.save of a view writes all that the view is cut from.
    saved = {"offsets": tuple(offsets), "shard": shard.detach().to("cpu", copy=True)}
    torch.save(saved, folder / f"{rank}.pt")
    if rank == 0:
        # How many files count: an earlier save by more ranks may have left others here.
        torch.save(ranks, folder / "ranks.pt")
    # A barrier: no rank returns, and loads, before all files are complete. On a GPU only reading the sum waits for it.
    done = torch.zeros(1, device=shard.device)
    all_reduce(done, group).wait()
    done.item()


@torch.no_grad()
def load(folder: Path, shard: Tensor, offsets: Sequence[int]) -> Tensor:
    """Fill this rank's shard, however the tensor was cut when it was saved.

    Nothing is sent, so each rank may call it by itself, and there may be any number of ranks.

    Args:
        folder: Where `save` wrote.
        shard: Memory for this rank's region; any of its values are overwritten.
        offsets: Where the region begins in the unsharded tensor, one number per dim.
    """
    # Which elements have been found in a file.
    filled = torch.zeros(shard.shape, dtype=torch.bool)
    for rank in range(torch.load(folder / "ranks.pt", weights_only=True)):
        # mmap reads from the disk only the elements that are copied.
        saved = torch.load(folder / f"{rank}.pt", mmap=True, weights_only=True)
        assert saved["shard"].dtype == shard.dtype, f"{saved['shard'].dtype} was saved, and {shard.dtype} asked for"
        source, target = overlap(saved["offsets"], saved["shard"].shape, offsets, shard.shape)
        # Either the regions don't overlap, or earlier files had the same elements (replicas).
        if filled[target].all():
            continue
        shard[target] = saved["shard"][source].to(shard.device)
        filled[target] = True
    # Counting copied elements is not enough: replicas count twice, and would hide gaps.
    assert filled.all(), f"{folder} lacks {int((~filled).sum())} elements of this shard"
    return shard


def overlap(
    offsets_a: Sequence[int], sizes_a: Sequence[int], offsets_b: Sequence[int], sizes_b: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The overlap of regions a and b, as an index into a and an index into b; empty slices if there is none."""
    in_a, in_b = [], []
    for a, size_a, b, size_b in zip(offsets_a, sizes_a, offsets_b, sizes_b, strict=True):
        start = max(a, b)
        # At least start: a negative stop would count from the end, and not be empty.
        stop = max(start, min(a + size_a, b + size_b))
        in_a.append(slice(start - a, stop - a))
        in_b.append(slice(start - b, stop - b))
    return tuple(in_a), tuple(in_b)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
