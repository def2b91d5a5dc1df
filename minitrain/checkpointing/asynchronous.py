"""Asynchronous checkpoints: the training waits for a copy in memory, and a thread writes the copy to the disk.

**Idea.** What a write needs is not the disk's time but values that stay as they are. A copy in host memory (pinned, if
it comes from a GPU) has them. There is one copy and one writer: a save that comes too early waits for the last one.

**Source.** Mohan et al. 2021, "CheckFreq" (snapshot and persist); PyTorch's `distributed.checkpoint.async_save`.
**Cost.** One copy of the state in host memory. A save stalls the training for the copy, S bytes, and for what is left
of the write before it.
The full form is the trainer's `--async-save`, `minitrain.checkpointing.full.background`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Asynchronous:
    """`save(state)` where a training would call `write(state)`, and `wait()` before it ends.

    Args:
        write: Writes a state completely or not at all, as `minitrain.checkpointing.atomic` does.
    """

    def __init__(self, write: Callable[[Mapping[str, Tensor]], object]):
        self.write, self.buffer = write, dict[str, Tensor]()
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.writing: Future | None = None

    @torch.no_grad()
    def save(self, state: Mapping[str, Tensor]) -> None:
        """Returns when the state may be changed again; raises the error of the write before it, if it had one."""
        # Backpressure: the copy is still being written. A second copy would only move the problem.
        self.wait()
        assert not self.buffer or self.buffer.keys() == state.keys(), "else old copies would be written as new"
        for name, tensor in state.items():
            if name not in self.buffer:
                # Made once. Only from pinned memory can a GPU's copies run beside its work.
                pinned = tensor.is_cuda
                self.buffer[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self.buffer[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in state.values()):
            # The next step of the optimizer changes the values, so all of them must have left the GPU.
            torch.cuda.current_stream().synchronize()
        self.writing = self.pool.submit(self.write, self.buffer)

    def wait(self) -> None:
        """Wait until the last save is on the disk, and raise its error; a thread's error is seen by nobody else."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
