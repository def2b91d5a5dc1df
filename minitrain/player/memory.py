"""What tensors hold, told as a computer keeps it: storages with numbers, and names that stand for a part of one.

A view is no copy. It is told as another name for cells that are told once, so a reader sees which variables share
memory, and that a message into a chunk changes the whole tensor.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from minitrain.comm.messages import Handle
from minitrain.comm.modes import Mode

LARGEST = 96  # elements of a storage whose numbers are told
RECEIVING = "~"  # a cell that a message may be writing just now


class Memory(Mode):
    """Numbers the storages of this rank in the order in which they are met, and knows what is still held.

    While it is open it sees the result of every operation, and so also what only autograd keeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}
        self.storages: list[StorageWeakRef] = []
        self.dtypes: dict[int, torch.dtype] = {}
        self.bytes: list[int] = []
        self.empty: dict[int, list | None] = {}  # storages that were freed: what they held when they came back

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor) and not each.is_meta:
                self.number(each)
        return result

    def number(self, tensor: Tensor) -> int:
        """The number of the storage in which a tensor lies."""
        storage = tensor.untyped_storage()
        # A weak reference keeps the storage's header, and so no later storage can have this key.
        key = storage._cdata
        if key not in self.numbers:
            self.numbers[key] = len(self.storages)
            self.storages.append(StorageWeakRef(storage))
            self.bytes.append(0)
        number = self.numbers[key]
        self.dtypes[number], self.bytes[number] = tensor.dtype, storage.nbytes()
        return number

    def held(self) -> int:
        """Bytes of all storages that something still refers to."""
        return sum(size for size, weak in zip(self.bytes, self.storages, strict=True) if not weak.expired())

    def settle(self) -> None:
        """Wait until gloo's thread has let go of what it sent, a moment after the wait for it."""
        held, since = self.held(), time.monotonic()
        while time.monotonic() < since + 0.01:
            time.sleep(0.001)
            if self.held() != held:
                held, since = self.held(), time.monotonic()

    def told(self, value: Any, depth: int = 0) -> Any:
        """A value as the page has it: a tensor as its place in memory, a list as a list, else a text; or None."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Handle):
            return "under way" if value.works else "done"
        if isinstance(value, (tuple, list, deque)) and len(value) <= 8 and depth < 2:
            parts = [self.told(each, depth + 1) for each in value]
            return None if None in parts else parts
        if value is None or isinstance(value, (bool, int)):
            return str(value)
        if isinstance(value, float):
            return str(plain(value))
        return repr(value)[:24] if isinstance(value, str) else None

    def _tensor(self, tensor: Tensor) -> dict[str, Any] | None:
        if tensor.is_meta or tensor.layout != torch.strided or type(tensor) not in (Tensor, nn.Parameter):
            return None
        told: dict[str, Any] = {"storage": self.number(tensor), "shape": list(tensor.shape)}
        if start := tensor.storage_offset():
            told["start"] = start
        if not tensor.is_contiguous():
            told["strides"] = list(tensor.stride())
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel() and tensor.untyped_storage().nbytes() < (start + reach) * tensor.element_size():
            told["freed"] = True  # as ZeRO-3 does: there is a tensor, and no memory behind it
        return told

    def cells(self, number: int, receiving: Iterable[tuple[int, int]]) -> list | str | None:
        """The numbers in a storage, as far as they may be looked at; "many" if they are too many, None if it is gone.

        Args:
            number: Which storage.
            receiving: First byte and the one after the last, of each part that a message may be writing.
        """
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storages[number].cdata)
        if storage is None:
            return None
        dtype = self.dtypes[number]
        size = dtype.itemsize
        count = storage.nbytes() // size
        if count > LARGEST:
            return "many"
        if not count:
            self.empty[number] = None
            return []
        found = listed(torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,)))
        if number in self.empty:
            # Memory that is back holds what lay there before. Nothing was written yet where it still does.
            before = self.empty[number] = self.empty[number] or found
            found = [None if a == b else b for a, b in zip(before, found, strict=True)]
        unwritten = None if dtype.is_floating_point or dtype == torch.bool else torch.iinfo(dtype).max
        told = [None if each == unwritten else each for each in found]
        for first, end in receiving:
            told[first // size : end // size] = [RECEIVING] * ((end - first) // size)
        return told


def listed(tensor: Tensor) -> list:
    """The elements of a tensor; None for those that nobody has written (see `Recorder`)."""
    # Not by the checks' guard of memory in flight: what may be written just now is left out by the caller.
    read = getattr(Tensor.tolist, "__wrapped__", Tensor.tolist)
    with torch.no_grad(), _disable_current_modes():
        return [plain(each) for each in read(tensor.detach().flatten())]


def plain(number: float) -> Any:
    """A number as it is shown: three places after the point, or six digits; None if it is not a number."""
    if math.isnan(number):
        return None
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    short = float(f"{number:.6g}") if abs(number) >= 1000 else round(float(number), 3)
    return int(short) if short == int(short) else short


def storages(told: Any) -> Iterator[int]:
    """The numbers of all storages that told values refer to."""
    if isinstance(told, dict):
        if "storage" in told:
            yield told["storage"]
        else:
            yield from storages(list(told.values()))
    elif isinstance(told, list):
        for each in told:
            yield from storages(each)
