"""The memory instrument: what a rank holds, in bytes, by category.

Bytes are those of storages, each counted once: a tied weight, a view, and a padded buffer count what they really take.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def storage_bytes(tensors: Iterable[Tensor | None], seen: set[int] | None = None) -> int:
    """Bytes of the storages behind `tensors`, each storage once; those in `seen` are left out, and added to it."""
    seen = set() if seen is None else seen
    total = 0
    for tensor in tensors:
        if tensor is None:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and storage.nbytes():
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def optimizer_states(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return _tensors(optimizer.state)


def model_states(module: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes that a model's states take on this rank, by category; optimizer states include their step counters."""
    seen: set[int] = set()
    return {
        "parameters": storage_bytes(module.parameters(), seen),
        "gradients": storage_bytes((p.grad for p in module.parameters()), seen),
        "optimizer states": storage_bytes((t for o in optimizers for t in _tensors(o.state)), seen),
        "buffers": storage_bytes(module.buffers(), seen),
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class SavedActivations:
    """Counts what autograd keeps for backward: `with SavedActivations(model) as saved: loss = model(x)`.

    Parameters and buffers of these modules are left out, since they are held anyway; each storage counts once.

    Attributes:
        bytes: Bytes kept so far.
        tensors: Shape, dtype and bytes of each storage kept, in the order in which they were saved.
    """

    def __init__(self, *modules: nn.Module):
        held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        self._seen = {t.untyped_storage().data_ptr() for t in held}
        self._alive: list[Tensor] = []  # keeps the storages alive, so that no address is used twice
        self.bytes = 0
        self.tensors: list[tuple[torch.Size, torch.dtype, int]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def _save(self, tensor: Tensor) -> Tensor:
        if size := storage_bytes([tensor], self._seen):
            self.bytes += size
            self.tensors.append((tensor.shape, tensor.dtype, size))
            self._alive.append(tensor.detach())
        return tensor

    def __enter__(self) -> SavedActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        self._alive.clear()


class Peak:
    """The most memory that was held at once, above what was held before: `with Peak(device) as peak: …`.

    On a GPU the allocator counts; on a CPU the profiler's memory events are added up in order of time. `bytes` is the
    peak, once the block has ended.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self._device = torch.device(device)
        self.bytes = 0

    def __enter__(self) -> Peak:
        # What is held before must not be given back meanwhile: not by the garbage collector, nor (on a CPU) by gloo,
        # whose threads let go of a message's tensors a moment after wait() has returned.
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            time.sleep(0.05)
            # Not torch.profiler.profile, which is this and more: it imports torch's compiler, for a second and a half.
            self._profile = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
            with quiet():
                self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
            return
        with quiet():
            self._profile.__exit__(*error)
        held = 0
        for _, size in sorted(_allocations(self._profile), key=lambda event: event[0]):
            held += size
            self.bytes = max(self.bytes, held)


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what torch's profiler writes to standard error when it starts and stops: lines of C++, and a warning."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _allocations(profile: Any) -> Iterator[tuple[int, int]]:
    """(time, bytes) of every allocation, and of every release with negative bytes, on the CPU."""
    events = list(profile.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        events.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation and event.extra_fields.device.type == "cpu":
            yield event.start_time_ns, event.extra_fields.alloc_size
