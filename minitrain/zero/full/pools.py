"""Two memories, the device's and the host's, kept apart even where they are one.

On a machine with a GPU the pools are the GPU's memory and the CPU's. On one without, both are the CPU's, and the pools
are names: what belongs to one has storages of its own, and goes to the other only by a copy. So the bytes of a lesson
are the same on both machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.memory import storage_bytes


class Pool:
    """A memory, and the tensors in it; `members` gives those that lie in it now."""

    def __init__(self, device: torch.device, members: Callable[[], Iterable[Tensor | None]]):
        self.device, self._members = device, members
        self._stream: torch.Stream | None = None  # on which a GPU copies to the host while it computes

    @property
    def bytes(self) -> int:
        """Bytes of the storages that lie in it, each once."""
        return storage_bytes(self._members())

    def empty(self, like: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Memory in this pool for a tensor of the other; on the host, pinned if there is a GPU."""
        # Only to pinned memory can a GPU copy while it computes.
        pinned = self.device.type == "cpu" and like.device.type == "cuda"
        return torch.empty(like.shape, dtype=like.dtype, device=self.device, pin_memory=pinned)

    def start_copy(self, target: Shaped[Tensor, "*shape"], source: Shaped[Tensor, "*shape"]) -> None:
        """Start to copy from the other pool into `target`, which is defined after `wait()`.

        From a GPU the copy runs while the GPU computes. `source` may be freed at once, but not overwritten.
        """
        if source.device.type == "cpu":
            # The next forward needs it at once, so there is nothing to overlap with.
            target.copy_(source)
            return
        if self._stream is None:
            self._stream = torch.Stream(source.device)
        self._stream.wait_stream(torch.accelerator.current_stream(source.device))  # `source` is computed there
        with self._stream:
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)  # its memory is not reused before the copy is done

    def wait(self) -> None:
        """Wait until all copies are done."""
        if self._stream is not None:
            self._stream.synchronize()
