"""Shared by the demos of resilience: processes that train in pure Python, and can be killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import TypeVar

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.resilience import child

Break = tuple[int, int, str]  # rank, step, and "kill" or "raise"
Result = TypeVar("Result")
PATIENCE = 30.0  # seconds that a training of a few steps may take, however busy the machine is


@dataclass
class Children:
    """Starts the ranks of a training as processes, again and again; `breaks[i]` goes wrong in the i-th attempt."""

    folder: Path
    ranks: int
    steps: int
    every: int
    breaks: Sequence[Break]
    pipe: int
    started: list[Popen] = field(default_factory=list)

    def start(self, rank: int) -> Popen:
        """For `supervise`, which starts rank 0 first in each attempt."""
        attempt = len(self.started) // self.ranks
        arguments = json.dumps([attempt, rank, self.ranks, self.steps, self.every, self.breaks])
        command = [sys.executable, "-S", "-E", child.__file__, arguments]
        process = Popen(command, cwd=self.folder, stdin=self.pipe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def finished(self) -> list[int]:
        """The steps that were finished, in all attempts."""
        return [int(line) for line in (self.folder / "finished").read_text().split()]

    def weights(self) -> list[str]:
        """The bits of the weights after the last step."""
        return json.loads((self.folder / "weights.json").read_text())

    def alive(self) -> int:
        return sum(process.poll() is None for process in self.started)

    def wait(self) -> list[int]:
        """Let all that were started end by themselves; their exit codes."""
        limit = time.monotonic() + PATIENCE
        return [process.wait(max(0.1, limit - time.monotonic())) for process in self.started]


@contextmanager
def children(folder: Path, steps: int, every: int, breaks: Sequence[Break] = (), ranks: int = 3) -> Iterator[Children]:
    """A training in a folder of its own, emptied of an earlier one. Its ranks end with the block or this process."""
    if (folder / "beat0").exists():  # of a cell that is run again
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    ours, theirs = os.pipe()
    made = Children(folder, ranks, steps, every, breaks, ours)
    try:
        yield made
    finally:
        os.close(ours)
        # The last writing end: each rank that is left reads the end of its input, and ends.
        os.close(theirs)
        for process in made.started:
            process.kill()
            process.wait()


def on_rank_0(world: World, function: Callable[[], Result]) -> Result:
    """What rank 0 makes of it, on every rank; if it fails there, all fail."""
    made, failed = None, ""
    if world.rank == 0:
        try:
            made = function()
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
    made, failed = gather_objects((made, failed))[0]
    if failed:
        raise RuntimeError(f"on rank 0: {failed}")
    return made
