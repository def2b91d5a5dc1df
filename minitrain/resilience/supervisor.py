"""Supervisor: start the ranks, see one die, stop the others, and start all again from the newest checkpoint.

**Idea.** A rank that dies takes the training with it, since the others wait for it forever. So a process that does
not train starts them all, and on the first death kills the rest and starts again. Restarting helps against chance,
but not against a mistake: after three crashes at the same step it gives up.

**Source.** torchrun (torch.distributed.elastic) restarts in this way, `--max-restarts` times, whatever the step;
MegaScale (Jiang et al. 2024), §4. With gloo, torchrun's restart needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
**Sent.** Nothing. It sees exit codes, and the step that ranks have noted (`heartbeat`).
**Cost.** Per crash: the start of all ranks, and the steps since the newest checkpoint, which are computed again.
The full form is the trainer's `--supervise`, `minitrain.trainer.supervise`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen


@dataclass(frozen=True)
class Crash:
    """Which rank ended first, with what exit code (−9: killed by signal 9), and the step that had been reached."""

    rank: int
    code: int
    step: int


def supervise(
    start: Callable[[int], Popen], ranks: int, step: Callable[[], int], most: int = 3, poll: float = 0.01
) -> list[Crash]:
    """Run all ranks to their end, with as many restarts as it takes; returns the crashes on the way.

    Args:
        start: Starts a rank, which loads the newest checkpoint by itself, if there is one.
        ranks: How many.
        step: Gives the step that the ranks have reached; with `heartbeat`, that of the slowest.
        most: Crashes in a row at one step after which it gives up, with a RuntimeError.
        poll: Seconds between two looks at the processes.
    """
    crashes: list[Crash] = []
    while True:
        processes: list[Popen] = []
        try:
            for rank in range(ranks):
                processes.append(start(rank))
            codes = [process.poll() for process in processes]
            # Until all have ended well, or one has failed.
            while None in codes and not any(codes):
                time.sleep(poll)
                codes = [process.poll() for process in processes]
        finally:
            # Also on Ctrl-C. SIGKILL, as a rank that waits in a collective hears nothing else; what it held is saved.
            for process in processes:
                process.kill()
                process.wait()
        if not any(codes):
            return crashes
        at = step()
        dead = [Crash(rank, code, at) for rank, code in enumerate(codes) if code]
        # Several may have ended since the last look: one that was killed comes before those that lost it.
        crashes.append(min(dead, key=lambda crash: crash.code > 0))
        last = crashes[-most:]
        if len(last) == most and len({crash.step for crash in last}) == 1:
            raise RuntimeError(f"gave up: {most} crashes at step {last[0].step}, the last of {last[-1]}")


def save(path: Path, write: Callable[[Path], object]) -> None:
    """A checkpoint that is complete or absent: a rank may be killed in the middle of writing."""
    write(path.with_suffix(".new"))
    # Renaming is atomic: until then the old file can be read.
    os.replace(path.with_suffix(".new"), path)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
