"""Where each rank is when nothing moves: the stacks of all ranks, compared, in one sentence.

**Idea.** When one rank hangs, the others wait for it in a collective. Each stack alone looks innocent; side by side,
the one that is not waiting stands out: "ranks 0, 1, 3 wait in all_reduce at train.py line 12; rank 2 is in load at
train.py line 5". If all wait, they do so at different lines.

**Source.** PyTorch's flight recorder, which compares the ranks' collectives; py-spy, which shows one process's stack.
With NCCL `wait()` returns at once, so ranks wait where they read a result, in a line that no frame names; with
TORCH_NCCL_BLOCKING_WAIT=1 they wait in the collective.
**Sent.** A stack per rank, through a folder that all ranks see, and only when a rank has made no progress for
`seconds`.
**Cost.** A thread that sleeps, and a look at the clock in each step. It needs Python's global lock, which torch
releases while it waits; where C code keeps it, py-spy shows the stack from outside. (Python's `faulthandler` writes
without the lock, and can crash a rank that is computing.)
"""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

VERBS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send", "recv", "wait"}
VERBS |= {"synchronize"}  # of a GPU, which waits for the others
STANDARD = re.compile(r"/lib/python[\d.]+/(?!site-packages)|<frozen")
OTHERS = re.compile(r"/site-packages/(?!torch/|minitrain/)")  # a download may `send`, too
FRAME = re.compile(r'File "(.*)", line (\d+) in (\S+)')


class Watchdog:
    """Appends the stack of the thread that created it to `path`, after every `seconds` without progress."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds, self.watched = path, seconds, threading.get_ident()
        path.touch()
        self.progress()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def progress(self) -> None:
        """To be called in each step."""
        self.due = time.monotonic() + self.seconds

    def close(self) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(max(0.0, self.due - time.monotonic())):
            # A step may have moved the time while this thread slept.
            if time.monotonic() >= self.due:
                self.progress()
                self._write()

    def _write(self) -> None:
        # These frames stay valid even if the other thread goes on.
        frames = traceback.walk_stack(sys._current_frames()[self.watched])  # the innermost first
        lines = [f'  File "{f.f_code.co_filename}", line {number} in {f.f_code.co_name}\n' for f, number in frames]
        with self.path.open("a") as file:
            file.write("".join([f"No progress for {self.seconds:g} s:\n", *lines]))


def place(dump: str) -> tuple[bool, str]:
    """Whether a rank waits for others, and where it is, from the last of its stacks."""
    frames = FRAME.findall(dump.rpartition("No progress")[2])
    assert frames, "no stack: was there a Watchdog, and has its time passed?"
    # The outermost collective is the one that our code called; the frames within it are its helpers.
    # (Python's own library has a `wait` as well, for threads.)
    named = [(depth, file) for depth, (file, _, name) in enumerate(frames) if name in VERBS]
    verbs = [depth for depth, file in named if not STANDARD.search(file) and not OTHERS.search(file)]
    verb = max(verbs, default=None)
    waits = verb is not None
    outer = frames if verb is None else frames[verb + 1 :]
    # The innermost line that is neither Python's nor an installed package's.
    ours = [frame for frame in outer if not STANDARD.search(frame[0]) and "site-packages" not in frame[0]]
    file, line, function = (ours or frames)[0]
    return waits, f"in {function if verb is None else frames[verb][2]} at {Path(file).name} line {line}"


def sentence(dumps: Mapping[int, str]) -> str:
    """All ranks in a sentence: those that wait first, each place once."""
    at: dict[tuple[bool, str], list[int]] = {}
    for rank in sorted(dumps):
        at.setdefault(place(dumps[rank]), []).append(rank)
    parts = []
    for (waits, where), ranks in sorted(at.items(), key=lambda item: (not item[0][0], -len(item[1]))):
        one = len(ranks) == 1
        verb = ("waits" if one else "wait") if waits else ("is" if one else "are")
        parts.append(f"rank{'s' * (not one)} {', '.join(map(str, ranks))} {verb} {where}")
    return "; ".join(parts)


def all_dumps(folder: Path, ranks: int) -> dict[int, str]:
    """What watchdogs have written to `stack0`, `stack1`, … by now."""
    return {rank: (folder / f"stack{rank}").read_text() for rank in range(ranks)}


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
