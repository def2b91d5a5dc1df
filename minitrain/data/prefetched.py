"""Samples that are read before they are asked for, so that a step does not wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from minitrain.data.text import Batch, Numbered


class Prefetched:
    """Training samples of which the next batch is read by a thread while a step is computed.

    Also called prefetch (DataLoader's `prefetch_factor`, tf.data).

    Args:
        batch: Samples by which the next request of this rank lies further on: those of all ranks in a step.
        device: Where a step computes. For a GPU batches are put into pinned memory, from which they are copied without
            waiting.
    """

    def __init__(self, samples: Numbered, batch: int, device: torch.device | None = None):
        self.samples, self.seq, self.batch = samples, samples.seq, batch
        self.pins = device is not None and device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._next: tuple[range, Future[Batch]] | None = None

    def take(self, samples: Iterable[int]) -> Batch:
        """Inputs and targets, each [samples, seq]; the next batch is then being read."""
        ahead, self._next = self._next, None
        if ahead and ahead[0] == samples:
            coming = ahead[1]
        else:
            coming = self._thread.submit(self._read, samples)  # by the same thread: samples need not stand two
        if isinstance(samples, range):
            following = range(samples.start + self.batch, samples.stop + self.batch)
            self._next = following, self._thread.submit(self._read, following)
        return coming.result()

    def _read(self, samples: Iterable[int]) -> Batch:
        inputs, targets = self.samples.take(samples)
        return (inputs.pin_memory(), targets.pin_memory()) if self.pins else (inputs, targets)
