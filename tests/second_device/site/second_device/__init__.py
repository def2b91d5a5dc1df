"""The second device inside a process: loaded with torch, by the `sitecustomize.py` beside this folder."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections import Counter

# What the library is linked against, in order.
LIBRARIES = ("torch_global_deps", "c10", "torch_cpu", "torch", "torch_python")


def before_torch(folder: str) -> None:
    """Load the library. It registers its hooks, which torch asks for once, while it is imported."""
    for name in LIBRARIES:
        ctypes.CDLL(os.path.join(folder, "lib", f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.environ["SECOND_DEVICE"], mode=ctypes.RTLD_GLOBAL)


def after_torch() -> None:
    """Give Python what a CPU build of torch lacks."""
    name = "second_device.device_library"
    spec = importlib.util.spec_from_file_location(name, os.environ["SECOND_DEVICE"])
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    from second_device import cuda, kernels, nccl, storages

    for part in (cuda, storages, kernels, nccl):
        part.install()


def notes() -> Counter[str]:
    """What was seen in this process that is no error here, but wrong on a GPU."""
    return Counter(sys.modules["second_device.device_library"].notes())


def asked() -> bool:
    """Whether this process has asked for GPUs: from then on it must not be forked."""
    return sys.modules["second_device.device_library"].asked()
