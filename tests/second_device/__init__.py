"""A second device: GPUs for the CPU build of torch, so that programs for GPUs are tried where there are none.

Tensors are of type `cuda`, with an allocator, streams, events, pinned memory, generators and a backend "nccl", which
refuse what GPUs and NCCL refuse; kernels are the CPU's. What is no error here and wrong on a GPU, such as a race
between streams, is noted. No line of a program is changed:

    python -m tests.second_device --gpus 4 -m minitrain.zero.stage1 --ranks 4

`environment()` gives a subprocess the device, `missing()` says why there can be none here, `notes()` what was noted. It
must be there before torch is imported, and so cannot be a flag of a program that has imported torch.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

SITE = Path(__file__).parent / "site"  # goes on PYTHONPATH: Python runs its sitecustomize.py when it starts


def missing() -> str:
    """Why the second device cannot be had here, for tests to skip with; "" if it can."""
    from tests.second_device import build

    return build.missing()


def environment(gpus: int, notes: Path | None = None) -> dict[str, str]:
    """The environment of a process that shall find GPUs. The device is built where that has not been done yet.

    Args:
        gpus: Number of GPUs of the machine; CUDA_VISIBLE_DEVICES chooses among them.
        notes: A file for what is noted in this process and in all that it starts; None keeps no file.

    Raises:
        RuntimeError: It cannot be built here; `missing()` says why beforehand.
    """
    from tests.second_device import build

    if problem := build.missing():
        raise RuntimeError(problem)
    added = {"SECOND_DEVICE": str(build.build()), "SECOND_DEVICE_GPUS": str(gpus)}
    if notes is not None:
        added["SECOND_DEVICE_NOTES"] = str(notes.absolute())
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return os.environ | added | {"PYTHONPATH": path}


def notes(file: Path | None = None) -> Counter[str]:
    """What is no error here and wrong on a GPU, and in how many processes, or how often in this one, it was seen.

    Args:
        file: What processes wrote that had this file in their `environment()`; None gives this process's notes.
    """
    if file is not None:
        return Counter(file.read_text().splitlines() if file.exists() else [])
    return sys.modules["second_device"].notes()
