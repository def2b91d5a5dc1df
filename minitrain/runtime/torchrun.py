"""What torchrun, or somebody who sets its variables, tells a process of itself; without importing torch."""

from __future__ import annotations

import os


def given_ranks() -> int | None:
    """How many ranks torchrun has started; None if this process is not one of several that it started."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE"} <= os.environ.keys() else None


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several ranks."""
    return given_ranks() is not None


def speaks() -> bool:
    """Whether this is the process that speaks to the reader before ranks have met: rank 0, or one without ranks."""
    return os.environ.get("RANK", "0") == "0"
