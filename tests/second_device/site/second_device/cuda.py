"""What torch.cuda's own Python calls in C, which a CPU build does not have."""

from __future__ import annotations

import types
from typing import Any, NamedTuple
from uuid import UUID

import torch

from second_device import device_library as library

CUDA = 1  # torch's number for this type of device
MEMORY = 80 << 30


class Properties(NamedTuple):
    """Those of an H100; the name says that it is none."""

    uuid: UUID
    name: str = "H100 (second device)"
    major: int = 9
    minor: int = 0
    total_memory: int = MEMORY
    multi_processor_count: int = 132
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    L2_cache_size: int = 50 << 20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


class Stream(torch.Stream):
    """torch.cuda.Stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **place: int) -> Stream:
        if place:
            return super().__new__(cls, **place)
        index = torch.cuda._utils._get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("cuda", index), priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


class Event(torch.Event):
    """torch.cuda.Event."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(cls, torch.device("cuda"), enable_timing=enable_timing)


def initialize() -> None:
    """What _cuda_init does besides starting CUDA."""
    torch.cuda.default_generators = tuple(library.default_generator(i) for i in range(library.gpus()))


def memory_stats(device: int) -> dict[str, Any]:
    """Bytes now and at most; the allocator keeps nothing in reserve."""
    bytes_ = {"all": {"current": library.allocated(device), "peak": library.peak(device)}}
    return {"allocated_bytes": bytes_, "reserved_bytes": bytes_, "active_bytes": bytes_, "requested_bytes": bytes_}


def install() -> None:
    """Put them where torch.cuda looks for them."""
    in_c = {
        "init": initialize,
        "getDeviceCount": library.gpus,
        "getDevice": library.current_device,
        "setDevice": library.set_device,
        "exchangeDevice": library.exchange_device,
        "maybeExchangeDevice": library.exchange_device,
        "canDeviceAccessPeer": lambda device, peer: True,
        "getArchFlags": lambda: None,
        "synchronize": library.synchronize,
        "getCurrentStream": lambda device: (library.current_stream(device), device, CUDA),
        "getDefaultStream": lambda device: (0, device, CUDA),
        "getCurrentRawStream": library.current_stream,
        "setStream": lambda stream_id, device_index, device_type: library.set_stream(device_index, stream_id),
        "memoryStats": memory_stats,
        "resetPeakMemoryStats": library.reset_peak,
        "resetAccumulatedMemoryStats": lambda device: None,
        "emptyCache": lambda *pool: None,
        "isInBadFork": library.in_bad_fork,
    }
    for name, value in in_c.items():
        setattr(torch._C, f"_cuda_{name}", value)
    # What torch.cuda took from C while it was imported, when it was not there yet.
    in_python = {
        "_is_in_bad_fork": library.in_bad_fork,
        "_exchange_device": library.exchange_device,
        "_maybe_exchange_device": library.exchange_device,
        "_cudart": types.SimpleNamespace(cudaMemGetInfo=lambda i: (MEMORY - library.allocated(i), MEMORY)),
        "_get_device_properties": lambda device: Properties(UUID(library.uuid(device))),
        "_device_count_nvml": library.gpus_named,  # counts without asking CUDA
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
    }
    for name, value in in_python.items():
        setattr(torch.cuda, name, value)
    torch.cuda.streams.Stream, torch.cuda.streams.Event = Stream, Event
    torch.backends.cuda.is_built = lambda: True
