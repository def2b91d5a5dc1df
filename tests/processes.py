"""Processes that tests start, and what becomes of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to take note does not."""
    try:
        os.kill(pid, 0)
        return not Path("/proc").exists() or ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def becomes(true: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Whether something becomes true in good time; on a busy machine processes end late."""
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    return true()


def descendants(program: int) -> list[int]:
    """The processes that a program has started, and those that these have, by /proc."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = [program]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]
