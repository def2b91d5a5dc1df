"""The first failure: of hundreds of tracebacks the one that caused the others, with its rank, host and step.

**Idea.** When a rank fails, its neighbors lose their connection, their neighbors time out, and each writes a
traceback. A consequence can be told by its message. Of the others the one in the lowest step comes first. The clock
decides only within a step, because the clocks of machines can differ by more than the time between two failures.

**Source.** Messages of gloo, NCCL and torch's watchdog; torchelastic's error files compare times only.
**Sent.** One small file per failed rank, in a folder that all ranks see.
**Cost.** Nothing until a rank fails.
"""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Said by a rank that has lost another; never the cause.
CONSEQUENCES = (
    "Connection reset by peer",
    "Connection closed by peer",
    "connection closed by rank",
    "Broken pipe",
    "Timed out waiting",
    "collective operation timeout",
    "remote process exited or there was a network error",
    "communicator was aborted",
)


@dataclass(frozen=True)
class Report:
    """One rank's traceback; `seconds` is the time on its own clock."""

    rank: int
    host: str
    step: int
    seconds: float
    traceback: str

    @property
    def error(self) -> str:
        """The last line: the exception."""
        # In a chain of exceptions the last is the one that ended the program.
        return self.traceback.strip().splitlines()[-1]

    @property
    def consequence(self) -> bool:
        return any(text in self.error for text in CONSEQUENCES)


def write(folder: Path, rank: int, step: int, error: BaseException) -> None:
    """To be called in an `except` around the training's loop."""
    text = "".join(traceback.format_exception(error))
    report = Report(rank, platform.node(), step, time.time(), text)
    # Complete or absent: a reader may come at any moment.
    (folder / f"failure{rank}.new").write_text(json.dumps(asdict(report)))
    os.replace(folder / f"failure{rank}.new", folder / f"failure{rank}.json")


def read(folder: Path) -> list[Report]:
    return [Report(**json.loads(path.read_text())) for path in sorted(folder.glob("failure*.json"))]


def first(reports: Sequence[Report], ranks: int) -> str:
    """Which rank failed first, in a sentence."""
    causes = [report for report in reports if not report.consequence]
    if causes:
        it = min(causes, key=lambda report: (report.step, report.seconds, report.rank))
        return f"rank {it.rank} on {it.host} failed first, in step {it.step}: {it.error}"
    # A rank that was killed has no time to write; the others have only lost it.
    silent = sorted(set(range(ranks)) - {report.rank for report in reports})
    if silent and reports:
        step = min(report.step for report in reports)
        return f"rank {', '.join(map(str, silent))} left no traceback: killed, in step {step} or just before"
    return "cannot decide: each traceback is a consequence" if reports else "no rank failed"


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
