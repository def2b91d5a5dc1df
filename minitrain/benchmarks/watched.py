"""Runs a command with a time limit, watches all of its processes, and leaves none. Imports no torch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BEAT, ASKED = 0.2, 2.0  # seconds between two looks at the processes, and between two questions to nvidia-smi
GRACE = 30.0  # seconds in which processes may end after the command
Process = tuple[int, str]  # its number, and when it was started, since numbers come again


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int  # its exit status; below 0 the number of a signal
    seconds: float  # how long it took
    wrong: str  # that it took too long, or that processes were left; "" otherwise
    gpus: int  # on how many GPUs one of its processes was at most; 0 where nvidia-smi does not tell


def watched(
    words: Sequence[str],
    log: Path,
    limit: float,
    environment: Mapping[str, str],
    kills: Literal["", "program", "rank"] = "",
    at: str = "",
) -> Ended:
    """Run a command in a session of its own until it and all of its processes have ended, or `limit` seconds are over.

    Once the pattern `at` occurs in its output, the program gets SIGKILL, or the process it started last. The log ends
    with the time that its processes took to end then.
    """
    family: set[Process] = set()
    begin = asked = time.monotonic()
    killed, wrong, gpus = 0.0, "", 0
    with open(log, "wb") as file:
        program = subprocess.Popen(words, stdout=file, stderr=file, env=environment, start_new_session=True)
        try:
            while program.poll() is None and not wrong:
                below = descendants(program.pid)
                family |= below
                now = time.monotonic()
                if kills and not killed and re.search(at, log.read_text("utf-8", errors="replace")):
                    killed = now
                    os.kill(max(below)[0] if kills == "rank" and below else program.pid, signal.SIGKILL)
                if now > asked + ASKED:
                    asked, gpus = now, max(gpus, most_gpus(nvidia_smi("--query-compute-apps=pid,gpu_uuid")))
                wrong = f"it had not ended after {limit:g} s" if now > begin + limit else ""
                time.sleep(BEAT)
            until = time.monotonic() + GRACE
            while not wrong and (left := family & processes().keys()):
                if time.monotonic() > until:
                    wrong = f"{len(left)} of its processes were left after {GRACE:g} s"
                time.sleep(BEAT)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            for number, _ in family & processes().keys():  # torchrun's ranks have sessions of their own
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            program.wait()
            until = time.monotonic() + GRACE
            # They free a GPU's memory, which the next step needs.
            while family & processes().keys() and time.monotonic() < until:
                time.sleep(BEAT)
        if killed:
            file.write(f"\nall processes had ended {time.monotonic() - killed:.1f} s after the kill\n".encode())
    return Ended(program.returncode, round(time.monotonic() - begin, 1), wrong, gpus)


def processes() -> dict[Process, int]:
    """All that run on this machine, each with the number of the one that started it; none where there is no /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *others = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":  # a zombie has ended
                found[int(path.parent.name), others[17]] = int(parent)
    return found


def descendants(number: int) -> set[Process]:
    """All processes below one."""
    children = defaultdict(list)
    for process, parent in processes().items():
        children[parent].append(process)
    found, left = set(), [number]
    while left:
        below = children[left.pop()]
        found |= set(below)
        left += [each for each, _ in below]
    return found


def nvidia_smi(query: str) -> str:
    """Its answer to a query, in lines of values; "" where there is none."""
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    if shutil.which(command[0]):
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    return ""


def most_gpus(told: str) -> int:
    """Of lines of process and GPU, how many GPUs a process has at most."""
    found = defaultdict(set)
    for line in told.splitlines():
        number, comma, gpu = line.partition(", ")
        if comma and number.isdigit():
            found[number].add(gpu)
    return max(map(len, found.values()), default=0)
