"""Starting, reaching and ending the processes that are the ranks.

A *forkserver* is a process that has imported torch once and then forks a copy of itself for every rank: four ranks
start in 0.2 s, where fresh processes would each import torch for seconds. It only imports; a process that has touched
a GPU must not be forked. `Ranks` (ranks.py) replaces the whole set when a rank is stuck.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.runtime import worker

PRELOAD = ["torch", "torch.distributed", "torch._dynamo", "minitrain.runtime.world", "minitrain.runtime.worker"]
POLITENESS = 2.0  # seconds in which a rank that was told to stop may leave the others in order
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")


class Processes:
    """n processes that run `worker.main`, one pipe to each, and a private folder.

    Args:
        size: Number of ranks.
        device: As in `World.start`.
        timeout: As in `World.start`.
        check: As in `World.start`.
    """

    def __init__(self, size: int, device: str, timeout: float, check: bool) -> None:
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.folder = tempfile.mkdtemp(prefix="minitrain-")
        # When the program ends or nobody refers to these processes any more, they end too.
        self.end = weakref.finalize(self, end, self.processes, self.pipes, self.folder, os.getpid())
        plan = worker.Plan(
            size=size,
            device=device,
            timeout=timeout,
            check=check,
            folder=self.folder,
            # If this process is killed nobody tidies up after it, so the ranks do.
            leftovers=(self.folder, multiprocessing.util.get_temp_dir()),
            # torchrun's variables are meant for another program that happens to run this one
            environment={name: value for name, value in os.environ.items() if not name.startswith(TORCHRUN)},
            path=os.getcwd(),
        )
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        with surroundings():
            for rank in range(size):
                ours, theirs = context.Pipe()
                self.pipes.append(ours)
                process = context.Process(target=worker.main, args=(rank, theirs, plan), daemon=True)
                process.start()
                self.processes.append(process)
                theirs.close()  # so that this pipe ends when the process does

    def sources(self, ranks: list[int]) -> dict[Any, int]:
        """What to wait for to hear of these ranks, messages as well as deaths."""
        pipes: dict[Any, int] = {self.pipes[rank]: rank for rank in ranks}
        return pipes | {self.processes[rank].sentinel: rank for rank in ranks}

    def send(self, rank: int, message: Any) -> None:
        """Send a rank one message. That it has died meanwhile is found out by `receive`."""
        with contextlib.suppress(OSError):
            self.pipes[rank].send_bytes(pickle.dumps(message))

    def receive(self, rank: int) -> Any:
        """One message of a rank.

        Raises:
            EOFError: The process has ended.
        """
        try:
            if self.pipes[rank].poll():
                return pickle.loads(self.pipes[rank].recv_bytes())
        except OSError:
            pass
        raise EOFError

    def exitcode(self, rank: int) -> int | None:
        """How a process ended: its exit code, or minus the number of the signal that ended it."""
        self.processes[rank].join(1.0)
        return self.processes[rank].exitcode

    def ask_for_stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where these ranks are: faulthandler writes the stack to a file, also of a process stuck inside C++."""
        for rank in ranks:
            with contextlib.suppress(OSError):  # it has died meanwhile
                os.kill(self.processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + 2.0
        stacks: dict[int, str] = {}
        while ranks and time.monotonic() < until:
            before, stacks = stacks, {rank: self.stack(rank) for rank in ranks}
            if all(stacks.values()) and stacks == before:  # all have written, and to the end
                break
            time.sleep(0.05)
        return stacks

    def stack(self, rank: int) -> str:
        """What faulthandler has written for a rank: when asked, or when the process crashed."""
        return Path(f"{self.folder}/stack{rank}").read_text(errors="replace")

    def kill(self) -> None:
        """End all without a word: those that are stuck cannot listen."""
        for process in self.processes:
            process.kill()
        self.end()


def end(processes: list[Any], pipes: list[Connection], folder: str, owner: int) -> None:
    """End processes, in order where they listen, and remove their folder."""
    if os.getpid() != owner:
        return  # this is a fork of the parent, which ends: the ranks are not its own
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send_bytes(pickle.dumps(("stop", None, None)))
    until = time.monotonic() + POLITENESS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join()
    for pipe in pipes:
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """What processes should find when they start.

    multiprocessing would run the main module again in each of them, so it is shown an empty one: a script needs no
    `if __name__ == "__main__"`. And torch would log errors about other ranks, with times and addresses; the tracebacks
    of the ranks say it better.
    """
    main = sys.modules["__main__"]
    level = os.environ.get("TORCH_CPP_LOG_LEVEL")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["TORCH_CPP_LOG_LEVEL"] = level or "FATAL"  # read when the forkserver imports torch
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if level is None:
            del os.environ["TORCH_CPP_LOG_LEVEL"]
