"""Regroup: when a rank is lost, the ranks that are left go on without it, with the same global batch.

**Idea.** The batch is a number of micro-batches, which is part of the training; how many ranks share it is not. The
ranks that are left make a new group of the largest size that divides the micro-batches, read the newest checkpoint
with its optimizer states cut for that size, and compute more micro-batches each. Ranks beyond that size are spares.

**Source.** Elastic training: torchrun; DLRover; Varuna (Athlur et al. 2022) and Bamboo (Thorpe et al. 2023) for
pipelines. Here data parallelism only; chapter 14's planner would choose any layout.
**Sent.** Nothing, apart from the meeting of the new group; states are read from a folder that all ranks see.
**Cost.** The steps since the checkpoint are computed again, and each step takes n/d times as long on d ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.checkpointing.resharding import load, save
from minitrain.comm.messages import Group, rank_and_size


def data_parallel_size(left: int, micro_batches: int) -> int:
    """The most ranks that can share the batch equally."""
    return max(size for size in range(1, left + 1) if micro_batches % size == 0)


def regroup(alive: Sequence[int], micro_batches: int) -> list[int]:
    """The ranks that go on; the others are spares."""
    return list(alive[: data_parallel_size(len(alive), micro_batches)])


def meet(working: Sequence[int], seconds: float = 60.0) -> Group:
    """A group without the dead, with gloo; all that are alive call it, and spares get a group of themselves.

    NCCL splits a group off the old one, in which the dead would have to take part. There, as with torchrun, the ranks
    that are left call `init_process_group` again. `working` are global ranks, the same list on each.
    """
    me = dist.get_rank()
    # A spare makes a group, too: torch names these groups by how many a rank is in.
    members = list(working) if me in working else [me]
    limit = timedelta(seconds=seconds)
    # Only members meet, so that the dead are not missed. (Do not destroy groups before: names must not come again.)
    group = dist.new_group(members, limit, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def part(elements: int, group: Group = None) -> slice:
    """This rank's part of the optimizer states; sizes may differ by one."""
    rank, ranks = rank_and_size(group)
    return slice(elements * rank // ranks, elements * (rank + 1) // ranks)


def checkpoint(folder: Path, weights: Tensor, momentum: Tensor, group: Group = None) -> None:
    """Save from all ranks of the group: each writes its part of all the weights, [elements], and its own momentum."""
    mine = part(len(weights), group)
    # One tensor of two rows, cut into columns.
    save(folder, torch.stack([weights[mine], momentum]), (0, mine.start), group)


def restore(folder: Path, weights: Tensor, group: Group = None) -> Tensor:
    """Fill all weights, and return this rank's part of the momentum, from any number of ranks' files."""
    load(folder, weights.view(1, -1), (0, 0))
    mine = part(len(weights), group)
    # The part of a dead rank is lost with it, so all momentum is read from the files.
    momentum = weights.new_empty(1, mine.stop - mine.start)
    return load(folder, momentum, (1, mine.start))[0]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
