"""Storages of a GPU, which a CPU build cannot make, resize or copy; and tensors of a GPU that are pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, UntypedStorage

from second_device import device_library as library

resize_cpu, clone_cpu, to_cpu = UntypedStorage.resize_, UntypedStorage.clone, torch._utils._to
pickle_storage = torch.storage.TypedStorage.__reduce__


def bytes_of(storage: UntypedStorage) -> Tensor:
    """A storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def resize_(self: UntypedStorage, size: int) -> UntypedStorage:
    """In place."""
    if self.device.type != "cuda":
        return resize_cpu(self, size)
    library.resize_storage(self, size)
    return self


def clone(self: UntypedStorage) -> UntypedStorage:
    """A copy on the same device."""
    return clone_cpu(self) if self.device.type != "cuda" else bytes_of(self).clone().untyped_storage()


def to(self: UntypedStorage, device: torch.device, non_blocking: bool = False) -> UntypedStorage:
    """A copy on another device."""
    if "cuda" not in (self.device.type, device.type):
        return to_cpu(self, device, non_blocking)
    return self if self.device == device else bytes_of(self).to(device, non_blocking=non_blocking).untyped_storage()


def pickle(self: Any) -> Any:
    """torch.save does not come here: what loads its files says which device it wants."""
    if self._untyped_storage.device.type == "cuda":
        library.note("a GPU's tensor is pickled, and opens a context on that GPU in whoever unpickles it")
    return pickle_storage(self)


def install() -> None:
    """Put them in the place of the CPU's."""
    UntypedStorage.resize_, UntypedStorage.clone = resize_, clone
    torch._utils._to = torch.storage._to = to
    torch.storage.TypedStorage.__reduce__ = pickle
