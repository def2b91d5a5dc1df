"""Trying a layout: a short real training on this machine, by the trainer itself, in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from minitrain.composition.presets import LARGE
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.planning.full.proposals import options

MOST = 8  # ranks that are started on a machine without GPUs


def tokens_per_second(model: Model, layout: Layout, steps: Steps, count: int = 5) -> float:
    """The median speed of a few steps, all ranks together.

    Raises:
        ValueError: There are too few ranks here, or the training failed; with the trainer's own last words.
    """
    refuse(model, layout.ranks)
    with tempfile.TemporaryDirectory() as folder:
        words = [*options(model, layout, replace(steps, steps=count, warmup=0)), "--ranks", str(layout.ranks)]
        # Steps and nothing else: no looks at held-out text, and no sample.
        words += ["--name", "tried", "--runs", folder, "--evaluate-every", "0", "--sample", "0"]
        # As a user would start it: the same options, read and checked the same way.
        made = subprocess.run(
            [sys.executable, "-m", "minitrain.train", *words], capture_output=True, text=True, check=False
        )
        if made.returncode:
            said = (made.stderr.strip() or made.stdout.strip()).splitlines()
            raise ValueError(f"measure: {layout} did not run: {said[-1] if said else f'status {made.returncode}'}")
        lines = (Path(folder) / "tried" / "metrics.jsonl").read_text("utf-8").splitlines()
    seconds = [line["seconds"] for line in map(json.loads, lines) if "seconds" in line]
    # Without the first two, which allocate memory and start kernels; the median, as single steps may be slow.
    return steps.batch * model.sizes.positions / statistics.median(seconds[2:] or seconds)


def refuse(model: Model, ranks: int) -> None:
    """Find out before a search whether its layouts can be tried here.

    Raises:
        ValueError: They cannot.
    """
    if model.preset in LARGE:
        raise ValueError(f"preset={model.preset} is larger than a machine; measure a smaller model")
    if ranks > (here := ranks_at_hand()):
        raise ValueError(f"measure: gpus={ranks} takes {ranks} ranks, and {here} can be started here; use fewer")


def ranks_at_hand() -> int:
    """Ranks that can be started here: one for each GPU, or a few on CPUs."""
    # Here, because a plan by itself needs no torch.
    import torch

    return torch.cuda.device_count() or max(MOST, os.cpu_count() or 1)
