"""What the pipeline explorer shows: timetables made by the package's own schedules and simulator, as JSON.

There is a file for each schedule and number of stages, which the page loads when it is chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STAGES = range(2, 9)
MICROBATCHES = range(1, 17)
WHOLE_RUN = range(1, 25)  # micro-batches without a flush: of all steps
CHUNKS = {"interleaved": (2, 3, 4), "zb-v": (2,)}  # of the others a rank has one
# Backward over forward, and what it is made of: time for the gradient of the input, and for that of the weights. 3 is
# a step with full recomputation, whose backward begins with another forward.
RATIOS = {"1": (0.5, 0.5), "2": (1.0, 1.0), "3": (2.0, 1.0)}


def files(package: Path) -> Iterator[tuple[str, str]]:
    """Name and content of each file.

    Args:
        package: folder of the package that has the schedules; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.pipeline_parallel.schedules import SCHEDULES, WITHOUT_FLUSH

    for name in (*SCHEDULES, *WITHOUT_FLUSH):
        for stages in STAGES:
            yield f"{name}-{stages}.json", json.dumps(timetables(name, stages), separators=(",", ":"))


def timetables(name: str, stages: int) -> dict[str, Any]:
    """All timetables of one schedule on `stages` ranks, by "micro-batches,chunks,ratio"."""
    from minitrain.pipeline_parallel.full.drawing import as_json
    from minitrain.pipeline_parallel.full.simulator import simulate
    from minitrain.pipeline_parallel.schedules import SCHEDULES, WITHOUT_FLUSH

    found = {}
    for chunks in CHUNKS.get(name, (1,)):
        for microbatches in WHOLE_RUN if name in WITHOUT_FLUSH else MICROBATCHES:
            # Interleaving takes micro-batches in groups of p, and 2BW, here with k = p, in batches.
            if name in ("interleaved", "2bw") and microbatches % stages:
                continue
            if name in WITHOUT_FLUSH:
                schedule = WITHOUT_FLUSH[name](stages, microbatches)
            else:
                schedule = SCHEDULES[name](stages, microbatches, chunks)
            for ratio, costs in RATIOS.items():
                # A rank's forward of one micro-batch takes 1, of a chunk its part.
                times = (cost / chunks for cost in (1.0, *costs))
                record = as_json(simulate(schedule, *times))
                kept = ("placement", "longest_span", "bubble_over_ideal", "bubble_over_total", "peak_in_flight", "rows")
                about_versions = ("versions_kept", "staleness", "mixed") if name in WITHOUT_FLUSH else ()
                found[f"{microbatches},{chunks},{ratio}"] = {key: record[key] for key in (*kept, *about_versions)}
    return found
