"""In a rehearsal, which tensors would be on the GPU: all of them are in the CPU's memory.

`GPU` is "cpu:0", which torch takes for the CPU as well. Tensors created on it or moved to it count as GPU tensors, and
so does everything computed from them. Tensors that a program creates without a device, or by `.cpu()`, count as CPU
tensors. A tensor that a torch operation creates internally is wherever its other tensors are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._device import _device_constructors

GPU = torch.device("cpu", 0)
# Operations whose result the program needs before it can go on, so it waits for the GPU.
READS = (
    *("_local_scalar_dense", "nonzero", "masked_select", "equal"),
    *("is_nonzero", "_unique2", "unique_consecutive", "bincount"),
)
# Operations that take tensors of the CPU and of the GPU together.
BRIDGES = ("copy_", "_to_copy", "set_", "index", "index_put_", "_index_put_impl_")
# torch's functions that make tensors; one that another operation makes inside is wherever that operation's are.
MAKERS = (
    *("tensor", "as_tensor", "from_numpy", "from_file", "frombuffer", "zeros", "ones", "empty", "full"),
    *("arange", "linspace", "eye", "rand", "randn", "randint", "randperm", "normal"),
)


class Patches:
    """Functions of torch that are replaced for a while."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Let `instead` be called in place of `owner.name`, with the original before the arguments."""
        original = getattr(owner, name)
        self.put(owner, name, wraps(original)(lambda *args, **kwargs: instead(original, *args, **kwargs)))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`."""
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put the originals back."""
        while self._originals:
            setattr(*self._originals.pop())


class Memories:
    """Follows tensors through operations.

    `read` is called when the program waits for the GPU to finish its work, because it needs a result, and `broken` with
    a text when it uses tensors in a way that no GPU could.
    """

    def __init__(self, read: Callable[[], None], broken: Callable[[str], None]):
        self._on_gpu: set[StorageWeakRef] = set()
        self._on_cpu: set[StorageWeakRef] = set()
        self._read, self._broken = read, broken
        self._looks_only_on_cpus = False

    def on_gpu(self, tensor: Tensor) -> bool:
        """Whether a tensor counts as one on the GPU."""
        return any(storage in self._on_gpu for storage in _storages(tensor))

    def on_cpu(self, value: Any) -> bool:
        """Whether one of the tensors, with elements, counts as one of the CPU."""
        return any(each.numel() and _storage(each) in self._on_cpu for each in tensors_in(value))

    def follow(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation; what it makes is where its arguments are, or on the device that it is given."""
        used = _storages((args, kwargs))
        on_gpu = any(storage in self._on_gpu for storage in used)
        device = kwargs.get("device")
        if on_gpu and (name in READS or _sized_by_content(name, args, kwargs)):
            self._reads()
        if on_gpu and name not in BRIDGES and (device is None or device.index is None):
            strangers = [each for storage, each in used.items() if storage in self._on_cpu and each.dim()]
            if strangers:
                shape = list(strangers[0].shape)
                self._broken(f"{name} is given a tensor of the CPU, of shape {shape}, together with one of the GPU")
        result = func(*args, **kwargs)
        if on_gpu or (device is not None and device.index == GPU.index):
            place = self._on_gpu
        elif any(storage in self._on_cpu for storage in used):
            place = self._on_cpu
        else:
            return result
        for storage in _storages(result):
            if storage not in used:
                self._put(storage, place)
        return result

    def _reads(self) -> None:
        if not self._looks_only_on_cpus:
            self._read()

    def _put(self, storage: StorageWeakRef, place: set[StorageWeakRef]) -> None:
        place.add(storage)
        if len(place) % 4096 == 0:
            place.difference_update([each for each in list(place) if each.expired()])  # list: threads may add to it

    # What the dispatcher does not see.

    def patch(self, patches: Patches) -> None:
        """Look at functions of torch that make tensors, move them, and read them."""
        _device_constructors()  # torch remembers them from now on as they were: `with torch.device(...)` asks
        for name in MAKERS:
            patches.replace(torch, name, self._maker)
        patches.replace(torch.nn.functional, "one_hot", self._looks)
        for name, instead in {"new_tensor": self._new_tensor, "cpu": self._cpu, "to": self._to}.items():
            patches.replace(Tensor, name, instead)
        refuse = partial(self._broken, "numpy cannot read a tensor of the GPU; call tensor.cpu() first")
        for act, names in ((self._reads, ("tolist", "__repr__", "__format__")), (refuse, ("numpy", "__array__"))):
            for name in names:
                patches.replace(Tensor, name, partial(self._on_gpu_first, act))
        own: Any = Tensor.device
        patches.put(Tensor, "device", property(lambda tensor: GPU if self.on_gpu(tensor) else own.__get__(tensor)))

    def _maker(self, original: Any, *args: Any, **kwargs: Any) -> Tensor:
        tensor = original(*args, **kwargs)
        device = torch.device(kwargs.get("device") or "cpu")
        storage = _storage(tensor)
        by_autograd = sys._getframe(2).f_globals.get("__name__") == "torch.autograd"  # to begin backward with
        if device.type == "cpu" and not tensor.is_meta and storage not in self._on_gpu and not by_autograd:
            self._put(storage, self._on_cpu if device.index is None else self._on_gpu)
        return tensor

    def _looks(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._looks_only_on_cpus = True  # at its argument; on GPUs it trusts
        try:
            return original(*args, **kwargs)
        finally:
            self._looks_only_on_cpus = False

    def _new_tensor(self, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = original(tensor, *args, **kwargs)
        if self.on_gpu(tensor) and "device" not in kwargs:
            self._put(_storage(made), self._on_gpu)
        return made

    def _cpu(self, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not self.on_gpu(tensor):
            return original(tensor, *args, **kwargs)
        self._reads()
        copy = tensor.clone()
        self._on_gpu.discard(_storage(copy))
        self._put(_storage(copy), self._on_cpu)
        return copy

    def _to(self, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        places = [each for each in (*args[:1], kwargs.get("device")) if isinstance(each, (str, int, torch.device))]
        place = torch.device(places[0]) if places else None
        if place is None or place.type != "cpu" or not self.on_gpu(tensor):
            return original(tensor, *args, **kwargs)
        # From the GPU to the GPU nothing moves, and to the CPU it does: to torch here, it is the other way round.
        positional = args[1:] if args and places[0] is args[0] else args
        asked = dict(zip(("dtype", "non_blocking", "copy"), positional, strict=False)) | kwargs
        rest = {key: asked[key] for key in ("dtype", "copy", "memory_format") if asked.get(key) is not None}
        tensor = tensor.cpu() if place.index is None else tensor
        return original(tensor, tensor.dtype if "dtype" not in rest else rest.pop("dtype"), **rest)

    def _on_gpu_first(self, act: Callable[[], None], original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.on_gpu(tensor):
            act()
        return original(tensor, *args, **kwargs)


class Devices:
    """What `Memories` says, where tensors are on GPUs: there their own devices tell, and torch refuses the rest."""

    def __init__(self, read: Callable[[], None]):
        self._read = read

    def on_cpu(self, value: Any) -> bool:
        """Whether one of the tensors, with elements, is the CPU's."""
        return any(each.numel() and each.device.type == "cpu" for each in tensors_in(value))

    def follow(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation."""
        if any(each.is_cuda for each in tensors_in((args, kwargs))):
            if name in READS or _sized_by_content(name, args, kwargs) or _brought_to_cpu(name, args, kwargs):
                self._read()
        return func(*args, **kwargs)

    def patch(self, patches: Patches) -> None:
        """Nothing: the dispatcher sees all copies."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in arguments or results that have memory of their own."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta and type(value).__name__ != "FakeTensor":
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _sized_by_content(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the result's size depends on numbers that the GPU holds: x[mask], or repeats without their sum."""
    if name in ("index", "index_put_", "_index_put_impl_"):
        filled = name != "index" and args[2].numel() == 1  # x[mask] = 0 becomes masked_fill
        return not filled and any(each.dtype == torch.bool for each in tensors_in(args[1]))
    return name == "repeat_interleave" and kwargs.get("output_size") is None


def _brought_to_cpu(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether tensors of GPUs are copied to the CPU, and the program waits for it."""
    if name == "copy_":
        return args[0].device.type == "cpu" and not (kwargs.get("non_blocking") or args[2:] == (True,))
    device = kwargs.get("device") if name == "_to_copy" else None
    return device is not None and device.type == "cpu" and not kwargs.get("non_blocking")


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _storages(value: Any) -> dict[StorageWeakRef, Tensor]:
    return {_storage(tensor): tensor for tensor in tensors_in(value)}
