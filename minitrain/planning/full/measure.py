"""Trying a layout: a short real training on this machine, by the trainer itself, in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from minitrain.composition.presets import LARGE
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.roofline import MACHINES, Machine
from minitrain.planning.full.plan_time import microbatch, shape_of
from minitrain.planning.full.proposals import options
from minitrain.planning.full.published import RUNS

MOST = 8  # ranks that are started on a machine without GPUs
# What rows of one's own have beside the columns of the published ones.
MORE = ("schedule", "cp_mode", "flops", "memory_GBps", "link_GBps")


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


def gpu_at_hand() -> tuple[str, Machine | None]:
    """The name of the device here, and its data sheet; None where we have none."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    # A whole word: GH200 is no H200. The PCIe and NVL cards are slower than those of the same name in the table.
    words = set(re.split(r"[ -]", name))
    for known, machine in MACHINES.items():
        if {*known.replace(" GB", "GB").split()} <= words and not words & {"PCIe", "PCIE", "NVL"}:
            return known, machine
    return name, None


def row(
    model: Model, layout: Layout, steps: Steps, per_node: int, gpu: str, machine: Machine | None, speed: float
) -> dict[str, Any]:
    """A measured layout as a row of runs, which `minitrain.planning.full.published` reads.

    A run that the model of time does not know is marked as not usable, and its note says why.

    Args:
        machine: The GPU's data sheet, or None.
        speed: Tokens per second, all ranks together.
    """
    shape, ranks = shape_of(model), layout.ranks
    unknown = [] if machine else [f"the figures of {gpu} are unknown: --flops and the four after it give them"]
    if steps.dtype not in ("bfloat16", "float16"):
        unknown.append(f"the model of time is one of training in 16 bits, and this was in {steps.dtype}")
    if shape.experts or model.sizes.head_size * shape.heads != shape.hidden:
        unknown.append("a row has no place for experts, nor for heads of a size of their own")
    # In a note, the word tells the reader of the row that attention was written out.
    notes = [*unknown, *(["with dropout"] if model.dropout else [])]
    found: dict[str, Any] = {
        "group": "measured here", "source": "python -m minitrain.plan --measure-to", "how_sure": "read",
        "model": model.preset, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads,
        "kv_heads": shape.kv_heads or shape.heads, "ffn": shape.mlp_width, "mlp": "swiglu" if shape.gated else "gelu",
        "vocab": shape.vocabulary, "tied": shape.tied, "positions": "learned" if shape.learned else "rope",
        "seq": shape.positions, "experts": shape.experts or "", "gpu": gpu, "gpus": ranks, "per_node": per_node,
        "network_GBps": machine.network / 1e9 if machine else 0, "vp": layout.stages // layout.pp,
        "seq_parallel": layout.sequence_parallel, "mbs": microbatch(layout, steps), "gbs": steps.batch,
        "precision": {"bfloat16": "bf16", "float16": "fp16"}.get(steps.dtype, steps.dtype),
        "reduce": "fp32" if "float32" in (steps.reduce_dtype, steps.dtype) else "bf16",
        "measured": "tokens/s/GPU", "value": speed / ranks, "step_s": steps.batch * shape.positions / speed,
        "tokens_per_s_gpu": speed / ranks, "usable": "no" if unknown else "yes", "note": "; ".join(notes),
    }  # fmt: skip
    for name in ("dp", "tp", "pp", "cp", "ep", "zero", "recompute", "schedule", "cp_mode"):
        found[name] = getattr(layout, name)
    if machine:
        found |= {"flops": machine.flops, "memory_GBps": machine.memory / 1e9, "link_GBps": machine.link / 1e9}
    return found


def columns() -> list[str]:
    """The columns of a file of one's own runs."""
    with RUNS.open(encoding="utf-8") as file:
        return [*next(csv.reader(file)), *MORE]


def last_number(path: Path) -> int:
    """The id of the last run in a file to which rows can be added; 0 if there is no such file yet.

    Raises:
        ValueError: The file has other columns, or its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise ValueError(f"measure_to={str(path)!r} lies in no folder that exists")
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in columns() if name not in (reader.fieldnames or ())]:
            raise ValueError(f"measure_to={str(path)!r} has no column {', '.join(missing)}; name a new file")
        return max((int(line["id"]) for line in reader if line["id"].isdigit()), default=0)


def append(path: Path, found: dict[str, Any]) -> None:
    """Add a row to a file of runs, which is created if need be.

    Raises:
        ValueError: As `last_number`.
    """
    number = 1 + last_number(path)
    names = columns()
    if number > 1:
        with path.open(encoding="utf-8", newline="") as file:
            names = next(csv.reader(file))  # in the order of the existing file
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if number == 1:
            writer.writeheader()
        writer.writerow({"id": number, **found})
