"""The page of what was measured on GPUs: reports of `minitrain.first_hour` that were sent in, docs/reports/*.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NONE = (
    "*No report has been sent in yet: nothing on this site was measured on a GPU. Yours would be the first; the "
    "[first hour](running.md#the-first-hour-on-gpus) takes one command.*"
)


def overview(folder: Path) -> str:
    """All reports, the newest first by their files' names ("2027-01-31-8xH100.json"): what was found, and the figures.

    Raises:
        ValueError: A report is of the second device, which is no GPU.
    """
    parts = []
    for path in sorted(folder.glob("*.json"), reverse=True):
        report = json.loads(path.read_text("utf-8"))
        if "second device" in report["about"]["gpu"]:
            raise ValueError(f"{path.name} is of the second device; a report here is of GPUs")
        parts.append(_report(path.stem, report))
    return "\n\n".join(parts) or NONE


def _came(step: dict[str, Any]) -> str:
    return f"left out: {step['left_out']}" if step["left_out"] else step["surprise"] or "yes"


def _report(name: str, report: dict[str, Any]) -> str:
    about, steps = report["about"], report["steps"]
    ran = [step for step in steps if not step["left_out"]]
    good = sum(not step["surprise"] for step in ran)
    versions = ", ".join(
        f"{what} {about[what]}" for what in ("torch", "cuda", "nccl", "driver_version") if what in about
    )
    rows = [
        f"| `{step['command']}` | {_came(step)} | "
        + "; ".join(f"{what} {value:,g}" for what, value in step["figures"].items())
        + " |"
        for step in steps
    ]
    return "\n".join(
        (
            f"## {name}: {about['gpus']} × {about['gpu']}",
            "",
            f"{good} of {len(ran)} steps as expected. {versions}; minitrain {about.get('minitrain', '')}.",
            "",
            "| command | as expected | figures |",
            "|---|---|---|",
            *rows,
        )
    )
