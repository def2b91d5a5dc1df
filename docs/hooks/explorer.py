"""What the pipeline explorer shows: timetables made by the package's own schedules and simulator, as JSON.

Each schedule has one file, which the page loads when the schedule is chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.pipeline_parallel.full.actions import Schedule

STAGES = range(2, 9)
MICROBATCHES = range(1, 17)
WHOLE_RUN = range(1, 25)  # micro-batches without a flush: of all steps
CHUNKS = {"interleaved": (2, 3, 4), "zb-v": (2,)}  # of the others a rank has one
# Backward over forward, and what a stage's forward, its gradient of the input and that of the weights then take: whole
# numbers, so that all times are. 3 is a step with full recomputation, whose backward begins with another forward.
RATIOS = {"1": (2, 1, 1), "2": (2, 2, 2), "3": (2, 4, 2)}


def files(package: Path) -> Iterator[tuple[str, str]]:
    """Name and content of each file.

    Args:
        package: folder of the package that has the schedules; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.pipeline_parallel.schedules import SCHEDULES, WITHOUT_FLUSH

    for name in (*SCHEDULES, *WITHOUT_FLUSH):
        yield f"{name}.json", json.dumps(timetables(name), separators=(",", ":"))


def timetables(name: str) -> dict[str, Any]:
    """All timetables of one schedule, by "stages,micro-batches,chunks"."""
    from minitrain.pipeline_parallel.schedules import SCHEDULES, WITHOUT_FLUSH

    found = {}
    for ranks in STAGES:
        for chunks in CHUNKS.get(name, (1,)):
            for microbatches in WHOLE_RUN if name in WITHOUT_FLUSH else MICROBATCHES:
                # Interleaving takes micro-batches in groups of p, and 2BW, here with k = p, in batches.
                if name in ("interleaved", "2bw") and microbatches % ranks:
                    continue
                if name in WITHOUT_FLUSH:
                    schedule = WITHOUT_FLUSH[name](ranks, microbatches)
                else:
                    schedule = SCHEDULES[name](ranks, microbatches, chunks)
                found[f"{ranks},{microbatches},{chunks}"] = timetable(schedule)
    return found


def timetable(schedule: Schedule) -> dict[str, Any]:
    """One schedule's actions, and under "ratios" their times for each of `RATIOS`.

    Returns:
        "actions" has for each rank its actions as a text, such as "0F0 0F1 0B0"; in "ratios", "starts" has when each of
        them begins, and "costs" how long each kind of action takes.
    """
    from minitrain.pipeline_parallel.full.drawing import as_json
    from minitrain.pipeline_parallel.full.simulator import simulate

    record: dict[str, Any] = {}
    ratios = {}
    for ratio, (forward, backward, weight) in RATIOS.items():
        record = as_json(simulate(schedule, forward, backward, weight))
        ratios[ratio] = {
            **{key: record[key] for key in ("longest_span", "bubble_over_ideal", "bubble_over_total")},
            "costs": {"F": forward, "B": backward + weight, "I": backward, "W": weight},
            "starts": [[bar[3] for bar in row] for row in record["rows"]],
        }
    # What follows from the order alone is the same in all records.
    order = ("placement", "peak_in_flight", "versions_kept", "staleness", "mixed")
    return {
        **{key: record[key] for key in order if key in record},
        "actions": [" ".join(map(str, row)) for row in schedule.actions],
        "versions": schedule.versions,
        "ratios": ratios,
    }
