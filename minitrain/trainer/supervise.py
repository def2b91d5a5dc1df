"""Keeps a run on ranks of our own alive: after a failure all ranks start again from the newest checkpoint.

The full form of `minitrain.resilience.supervisor`. Ranks are forks of a process that has imported torch and the
trainer, so a restart imports nothing. `Ranks` finds what has failed: a rank that died, raised or stopped, or that
nobody has made any progress for `--timeout` seconds. A failure that comes back at the same step is no accident: after
the third in a row the run ends. Other ends, such as a loss that is not a number, come back as well: they are final.

Also called elastic agent (torchrun), watchdog, auto-restart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minitrain.comm.terminal import complain
from minitrain.composition.settings import Settings
from minitrain.ranks.failures import RanksError
from minitrain.ranks.processes import forkserver
from minitrain.trainer import metrics

if TYPE_CHECKING:
    from minitrain.comm import World
    from minitrain.ranks.ranks import Ranks
else:
    World = Ranks = Any  # no torch here, as in `launch`

SAME = 3  # failures in a row at one step, after which the run ends
WARM = ["minitrain.train", "minitrain.trainer.trainer", "rich.progress"]  # imported once, for all ranks


def supervise(
    start: Callable[[], Ranks], train: Callable[[Ranks, Settings, float | None], int], settings: Settings
) -> int:
    """Train until the run ends by itself or is asked to; returns the exit status.

    Args:
        start: Starts the ranks. Those that failed are replaced with the next call.
        train: Trains on ranks, and returns the exit status; the number is when those before them have failed.
    """
    ranks: Ranks | None = None
    failed: float | None = None
    reached: list[int] = []  # at each failure the steps done
    try:
        while True:
            try:
                forkserver(WARM)  # a fresh one only if it was killed, too
                ranks = ranks or start()
                # Only once: ranks that are started again must not remove what those before them have saved.
                if not settings.run.resume:
                    if status := max(ranks.run(prepare, settings, os.getpid())):
                        return status
                    settings = replace(settings, run=replace(settings.run, resume=True, overwrite=False))
                return train(ranks, settings, failed)
            except RanksError as error:
                # Ranks on this machine have the same clock, and tell how long the way back took.
                failed = time.monotonic()
                reached.append(steps_done(settings))
                # False as well while there have been fewer failures.
                if reached[-SAME:] == SAME * reached[-1:]:
                    how = f"gave up: {SAME} failures in a row after step {reached[-1]}, this is the last"
                    complain(f"{how}:\n{error}")
                    return 1
                where = f"after step {reached[-1]}, restart {len(reached)}"
                complain(f"{where}: {brief(error)}")
    finally:
        if ranks is not None:
            ranks.close()


def prepare(world: World, settings: Settings, program: int) -> int:
    """On each rank, before the first start: remove what the run is to begin without; returns the exit status."""
    from minitrain.checkpointing.full.agreement import same_on_all_ranks
    from minitrain.comm.lock import Lock
    from minitrain.trainer.saving import clear

    def alone() -> None:
        if world.rank == 0:
            # Another run in this folder would lose its checkpoints.
            lock = Lock(settings.run.folder, program)
            clear(settings, first=True)
            lock.release()

    try:
        same_on_all_ranks(alone, None)
    except (ValueError, OSError) as error:
        if world.rank == 0:
            complain(error)
        return 2
    return 0


def steps_done(settings: Settings) -> int:
    """The steps that the run had done when it failed, by its log."""
    # From the log, as the ranks that knew are gone.
    lines = metrics.read(settings.run.folder / metrics.NAME)
    return metrics.steps_at(lines[-1]) if lines else 0


def brief(error: RanksError) -> str:
    """The failure in a line, the first cause of it: a message has tracebacks, and what other ranks lost by it."""
    first, *others = str(error).splitlines()
    for text in error.failures.values():
        if str(error).startswith(f"{first}\n{text}"):  # a traceback: its last line is the exception
            return f"{first} {text.splitlines()[-1]}"
    return first if " died: " in first else " ".join([first, *others])
