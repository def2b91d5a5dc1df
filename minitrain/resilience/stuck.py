"""Where each rank is when nothing moves: the stacks of all ranks, compared, in one sentence.

**Idea.** When one rank hangs, the others wait for it in a collective. Each stack alone looks innocent; side by side,
the one that is not waiting stands out: "ranks 0, 1, 3 wait in all_reduce at train.py line 12; rank 2 is in load at
train.py line 5". If all wait, they do so at different lines.

**Source.** Python's faulthandler, whose timer is a thread in C: it writes even while the interpreter is blocked.
PyTorch's flight recorder compares collectives, and py-spy shows one process's stacks.
With NCCL `wait()` returns at once, so ranks wait where they read a result, in a line that no frame names; with
TORCH_NCCL_BLOCKING_WAIT=1 they wait in the collective.
**Sent.** A stack per rank, by a folder that all ranks see, and only when a rank has made no progress for `seconds`.
**Cost.** Restarting a timer in each step.
"""

from __future__ import annotations

import faulthandler
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

VERBS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "send", "recv", "wait")
VERBS = (*VERBS, "synchronize")  # of a GPU, which waits for the others
STANDARD = re.compile(r"/lib/python[\d.]+/(?!site-packages)|<frozen")
FRAME = re.compile(r'File "(.*)", line (\d+) in (\S+)')


def watch(file: TextIO, seconds: float) -> None:
    """To be called in each step: without a next call, this rank's stack is written to `file` every few `seconds`."""
    faulthandler.dump_traceback_later(seconds, repeat=True, file=file)


def place(dump: str) -> tuple[bool, str]:
    """Whether a rank waits for others, and where it is, from the last of its dumps, the innermost frame first."""
    # A dump has one block per thread, and the main thread's comes last.
    frames = FRAME.findall(dump.rpartition("Thread 0x")[2])
    assert frames, "no stack: was watch() called, and has its time passed?"
    # The outermost collective is the one that our code called; the frames within it are its helpers.
    # (Python's own library has a `wait` as well, for threads.)
    verbs = [depth for depth, (file, _, name) in enumerate(frames) if name in VERBS and not STANDARD.search(file)]
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
    """What `watch` has written to `stack0`, `stack1`, … by now."""
    return {rank: (folder / f"stack{rank}").read_text() for rank in range(ranks)}


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
