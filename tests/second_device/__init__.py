"""A second device: GPUs for the CPU build of torch, so that programs for GPUs are tried where there are none.

    python -m tests.second_device --gpus 4 -m minitrain.zero.stage1 --ranks 4

`environment()` gives a subprocess the device, `missing()` says why there can be none here, and `notes()` what was seen.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent


def missing() -> str:
    """Why the second device cannot be had here, for tests to skip with; "" if it can."""
    from tests.second_device import build

    return build.missing()


def environment(gpus: int, notes: Path | None = None) -> dict[str, str]:
    """The environment of a process that shall find `gpus` GPUs. The device is built where that has not been done yet.

    Args:
        gpus: Number of GPUs.
        notes: A file for what is seen in this process and all that it starts; None writes it nowhere.

    Raises:
        RuntimeError: It cannot be built here; `missing()` says why beforehand.
    """
    from tests.second_device import build

    if problem := build.missing():
        raise RuntimeError(problem)
    path = os.pathsep.join(filter(None, [str(FOLDER / "site"), os.environ.get("PYTHONPATH"), str(FOLDER.parents[1])]))
    added = {"SECOND_DEVICE": str(build.build()), "SECOND_DEVICE_GPUS": str(gpus), "PYTHONPATH": path}
    return os.environ | added | ({"SECOND_DEVICE_NOTES": str(notes.absolute())} if notes else {})


def notes(file: Path | None = None) -> Counter[str]:
    """What the device has seen that is no error in itself but wrong on a GPU: races, pickled tensors of a GPU, …

    Args:
        file: What processes wrote that had this file in their `environment()`; None gives this process's notes.
    """
    if file is not None:
        return Counter(file.read_text().splitlines() if file.exists() else [])
    return sys.modules["second_device"].notes()
