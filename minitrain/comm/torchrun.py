"""What torchrun, or any program that sets its variables, tells a process about itself; without importing torch."""

from __future__ import annotations

import contextlib
import os
import threading
import time

BEAT = 0.25  # seconds between two checks that torchrun is still running


def given_ranks() -> int | None:
    """How many ranks torchrun has started; None if this process is not one of several that it started."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else None


def speaks() -> bool:
    """Whether this is the process that speaks to the reader before ranks have met: rank 0, or one without ranks."""
    return os.environ.get("RANK", "0") == "0"


def end_with_torchrun() -> None:
    """From now on, end this process at once when the torchrun that started it has gone; a thread looks at it.

    torchrun ends its ranks when it is asked to end, but not when it is killed: they would go on as orphans, even next
    to the ranks that replace them. Where something else sets torchrun's variables, a parent that ends means nothing.

    Linux could send a signal instead (PR_SET_PDEATHSIG), but does so when the thread that started this process ends,
    and SIGKILL leaves no time for a message.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(torchrun: int) -> None:
    while os.getppid() == torchrun:
        time.sleep(BEAT)
    if os.environ.get("LOCAL_RANK") == "0":  # one rank of a machine speaks
        with contextlib.suppress(OSError):  # nothing reads it any more
            os.write(2, f"torchrun (process {torchrun}) is gone: its ranks end at once, without saving\n".encode())
    os._exit(1)
