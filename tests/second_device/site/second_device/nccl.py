"""torch.distributed's NCCL, which a CPU build lacks: gloo with NCCL's rules (see nccl.cpp)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ProcessGroupGloo
from torch.distributed import distributed_c10d as c10d

from second_device import device_library as library

register_backend = ProcessGroup._register_backend
# Python's side of a backend, such as its options, lives as long as someone in Python has it.
groups: list[tuple[Any, Any]] = []


class Options(ProcessGroupGloo._Options):
    """ProcessGroupNCCL.Options, which are handed on to gloo when a group is split."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__()
        self._devices = [ProcessGroupGloo.create_default_device()]
        self.is_high_priority_stream = is_high_priority_stream

    def __deepcopy__(self, memo: object) -> Options:
        copy = Options(getattr(self, "is_high_priority_stream", False))  # a split group's are gloo's
        copy._timeout, copy.group_name = self._timeout, self.group_name
        copy.global_ranks_in_group = self.global_ranks_in_group
        return copy


class NcclType(type):
    """What is made here is an instance of ProcessGroupNCCL, so far as torch asks."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, library.Nccl)


class ProcessGroupNCCL(metaclass=NcclType):
    """torch.distributed.ProcessGroupNCCL."""

    Options = Options

    def __new__(cls, store: dist.Store, rank: int, size: int, options: Options) -> Any:
        gloo = ProcessGroupGloo(store, rank, size, options._timeout)
        groups.append((library.Nccl(gloo, store, False), options))
        return groups[-1][0]


def options(self: Any) -> Any:
    """What the group was made with."""
    given = next((given for group, given in groups if group is self), self.gloo_options)
    return given if isinstance(given, Options) else Options.__deepcopy__(given, {})


def register(self: ProcessGroup, device: Any, kind: Any, backend: Any = None) -> Any:
    """Ranks that share a GPU use gloo, whose collectives take a GPU's tensors, and whose messages don't."""
    if device.type == "cuda" and isinstance(backend, ProcessGroupGloo):
        backend, kind = library.Nccl(backend, None, True), ProcessGroup.BackendType.CUSTOM
        groups.append((backend, None))
    return register_backend(self, device, kind, backend)


def install() -> None:
    """Put them where torch.distributed looks for them."""
    library.Nccl.options = property(options)
    for module in (c10d, dist):
        module.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    torch._C._nccl_version = lambda: 2 << 32 | 27 << 16 | 3  # 2.27.3
    torch._C._nccl_version_suffix = lambda: b""
    ProcessGroup._register_backend = register
