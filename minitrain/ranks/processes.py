"""The processes of n ranks: started together, reached, and ended together.

`Ranks` (ranks.py) replaces the whole set when a rank is stuck.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minitrain.ranks.forkserver import Forkserver, Rank
from minitrain.ranks.worker import Plan

POLITENESS = 2.0  # seconds in which a rank that was told to stop may leave the others in order, ...
ON_GPU = 10.0  # ... and where it must take down a GPU's contexts
TORCHRUN = r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*)"

_forkserver: Forkserver | None = None  # one per program: importing torch is the slow part


def forkserver(more: Sequence[str] = (), fork: bool = False) -> Forkserver:
    """The program's forkserver, started when first needed, with the arguments of `Forkserver`."""
    global _forkserver
    if _forkserver is None or not _forkserver.usable():
        _forkserver = Forkserver(more, fork)
    return _forkserver


class Processes:
    """The processes of n ranks, and a private folder; `world` has further arguments of `World.start`."""

    def __init__(self, size: int, **world: Any) -> None:
        server = forkserver()
        self.folder = tempfile.mkdtemp(prefix="minitrain-")
        self.ranks: list[Rank] = []
        # When the program ends or these processes are no longer referenced, they end too.
        self.end = weakref.finalize(self, end, self.ranks, self.folder, os.getpid())
        plan = Plan(
            world={"size": size, **world},
            folder=self.folder,
            # torchrun's variables are meant for another program that happens to run this one
            environment={name: value for name, value in os.environ.items() if not re.fullmatch(TORCHRUN, name)},
            search_path=[os.path.abspath(entry) for entry in sys.path],
            directory=os.getcwd(),
        )
        for rank in range(size):
            self.ranks.append(server.start(rank, plan))

    def sources(self, ranks: list[int]) -> dict[Any, int]:
        """The objects to wait on for news of these ranks, messages as well as deaths."""
        pipes: dict[Any, int] = {self.ranks[rank].pipe: rank for rank in ranks}
        return pipes | {self.ranks[rank].status: rank for rank in ranks}

    def send(self, rank: int, message: Any) -> None:
        """Send a rank one message. `receive` finds out if it has died meanwhile."""
        with contextlib.suppress(OSError):
            self.ranks[rank].pipe.send_bytes(pickle.dumps(message))

    def receive(self, rank: int) -> Any:
        """One message of a rank; an EOFError if the process has ended."""
        pipe = self.ranks[rank].pipe
        try:
            if pipe.poll():
                return pickle.loads(pipe.recv_bytes())
        except OSError:
            pass
        raise EOFError

    def exitcode(self, rank: int) -> int | None:
        """How a process ended: its exit code, or minus the number of the signal that ended it."""
        return self.ranks[rank].exitcode(seconds=5.0)

    def stopped(self, rank: int) -> bool:
        """Whether a process stands still since it got SIGSTOP; False where there is no /proc."""
        try:
            return Path(f"/proc/{self.ranks[rank].pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def ask_for_stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where these ranks are: faulthandler writes the stack to a file, also of a process stuck inside C++."""
        for rank in ranks:
            self.ranks[rank].signal(signal.SIGUSR1)
        until = time.monotonic() + 2.0
        stacks = dict.fromkeys(ranks, "")
        while ranks and time.monotonic() < until:
            before, stacks = stacks, {rank: self.stack(rank) for rank in ranks}
            if all(stacks.values()) and stacks == before:  # all have written, and to the end
                break
            time.sleep(0.05)
        return stacks

    def stack(self, rank: int) -> str:
        """What faulthandler has written for a rank: when asked, or when the process crashed."""
        file = Path(f"{self.folder}/stack{rank}")
        return file.read_text(errors="replace") if file.exists() else ""  # not if the rank had hardly started

    def kill(self) -> None:
        """End all without asking: ranks that are stuck cannot listen."""
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)
        self.end()


def end(ranks: list[Rank], folder: str, owner: int) -> None:
    """End processes, in order where they listen, and remove their folder."""
    if os.getpid() != owner:
        return  # this is an ending fork of the program: the ranks are not its own
    for rank in ranks:
        with contextlib.suppress(OSError):
            rank.pipe.send_bytes(pickle.dumps(("stop", None, None, 0, [])))
    until = time.monotonic() + (ON_GPU if Path("/dev/nvidiactl").exists() else POLITENESS)
    for rank in ranks:
        if rank.exitcode(max(0.0, until - time.monotonic())) is None:
            rank.signal(signal.SIGKILL)
            rank.exitcode(seconds=5.0)
        rank.pipe.close()
        rank.status.close()
    shutil.rmtree(folder, ignore_errors=True)
