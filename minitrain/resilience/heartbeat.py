"""Heartbeat: each rank notes the step that it has reached, and a monitor names the rank that holds up all others.

**Idea.** A rank that hangs sends no error: its process lives and even its threads do. So a rank reports steps, not
life. As all ranks wait for the slowest, all of them soon stop; the cause is the rank with the lowest step.

**Source.** Jiang et al. 2024, "MegaScale", §4 (heartbeats, and slow machines found by their own compute time).
**Sent.** A small file per rank and step, in a folder that the monitor sees.
**Cost.** A rank is found late by the limit, plus the time between two looks.
Also called straggler detection, hang detection, liveness probe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def beat(folder: Path, rank: int, step: int) -> None:
    """A rank has done its own part of a step; to be called before it waits for others."""
    path = folder / f"beat{rank}"
    # Replaced in one go, so that the monitor never reads half a number.
    (folder / f"beat{rank}.new").write_text(str(step))
    os.replace(folder / f"beat{rank}.new", path)


def steps(folder: Path, ranks: int) -> list[int]:
    """The last step of each rank; −1 before its first."""
    paths = [folder / f"beat{rank}" for rank in range(ranks)]
    return [int(path.read_text()) if path.exists() else -1 for path in paths]


class Monitor:
    """`late(steps, now)` from time to time; `limit`: seconds without a step after which something is wrong."""

    def __init__(self, ranks: int, limit: float):
        assert ranks > 0 and limit > 0, f"invalid: {ranks=}, {limit=}"
        self.limit = limit
        # Of each rank its step, none yet, and when that was new.
        self.steps, self.since = [-2] * ranks, [0.0] * ranks

    def late(self, steps: Sequence[int], now: float) -> list[int]:
        """The ranks that hold up the others; none as long as one rank still makes steps."""
        for rank, step in enumerate(steps):
            # By the monitor's own clock: those of other machines may be off.
            if step != self.steps[rank]:
                self.steps[rank], self.since[rank] = step, now
        if any(now - since < self.limit for since in self.since):
            return []
        # The others have done their part of this step and wait.
        return [rank for rank, step in enumerate(steps) if step == min(steps)]


def stragglers(seconds: Mapping[int, Sequence[float]], factor: float = 1.3) -> list[int]:
    """Ranks that compute for longer than `factor` times the typical rank.

    Args:
        seconds: Of each rank, its last steps without the time in which it waited for others; with it all are equal.
        factor: More than healthy ranks differ by.
    """
    # One long step is a garbage collection; a median over steps overlooks it.
    typical = {rank: median(times) for rank, times in seconds.items()}
    usual = median(list(typical.values()))
    return [rank for rank, time in typical.items() if time > factor * usual]


def median(numbers: Sequence[float]) -> float:
    """The one in the middle; of two, the lower, so that of two ranks the slow one is found."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
