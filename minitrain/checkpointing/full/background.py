"""`minitrain.checkpointing.asynchronous` for a whole training: all ranks' shards, on groups of their own.

A thread of each rank runs `checkpoint.save`, whose ranks have to agree. Its messages must not mix with those of the
training, so they have a group of their own. The training waits only for the copy of this rank's shards, and for what is
left of the save before. `checkpointing/checkpoint.py` is to be opened first.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full.shards import Shard, ShardedTensor, State
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group


class Background:
    """`save(...)` as of `checkpoint`, behind the training's back; every rank makes one, and calls alike.

    Attributes:
        copies: This rank's shards as they were at the last save: what this takes of host memory.
    """

    def __init__(self) -> None:
        self._group = new_group(range(dist.get_world_size()), backend="gloo", description="checkpoints")
        # The group's control messages have a group of their own, which all ranks have to make in one place.
        gather_objects(None, self._group)
        # One thread, so that all ranks save in the same order.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Path | None] | None = None
        self.copies: dict[tuple[str, int], torch.Tensor] = {}

    def save(self, folder: Path, step: int, state: State, extra: dict[str, Any], keep: int = 2) -> None:
        """Copy this rank's shards, and begin to write as `checkpoint.save` does; waits until an earlier save has ended.

        The shards may change as soon as this returns.

        Raises:
            ValueError: The earlier save was invalid; on every rank alike.
        """
        self.wait()
        # Only now: there is one copy, and the earlier save was still reading it.
        copied = self._copy(state)
        self._writing = self._pool.submit(checkpoint.save, folder, step, copied, extra, keep, self._group)

    def wait(self) -> Path | None:
        """Wait until what was begun is on the disk; returns its path.

        That is None if nothing was being written, or if it could not be written, of which a warning has told.
        """
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    @torch.no_grad()
    def _copy(self, state: State) -> State:
        copied: State = {}
        for name, sharded in state.items():
            shards = []
            # Those that another rank writes need no copy.
            for number, (tensor, offsets) in enumerate(sharded.shards if sharded.writes else ()):
                kept = self.copies.get((name, number))
                if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                    self.copies[name, number] = kept
                shards.append(Shard(kept.copy_(tensor, non_blocking=True), offsets))
            copied[name] = ShardedTensor(sharded.shape, sharded.dtype, shards, sharded.writes)
        # The training may change its shards as soon as this returns.
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return copied
