"""The speed of a training: tokens per second, and the part of the GPUs' peak that serves the model.

Model FLOP utilization (MFU) asks how fast the GPU would have to be if it did nothing but the model's own products: the
operations of a step, without what is computed again, over the step's time and the peak. The operations are counted by
`minitrain.costs.composition_work.step_flops`: 6 for each parameter of a matrix and token, and 12·h·s for each layer and
token for attention.

Source: Chowdhery et al. 2022, "PaLM", appendix B. Peaks: `minitrain.costs.roofline`.
"""

from __future__ import annotations

import re
import resource
import sys

import torch

from minitrain.comm import World
from minitrain.composition.settings import Model, Steps
from minitrain.costs import composition_work as costs
from minitrain.costs.roofline import PEAKS
from minitrain.planning.full.plan_time import rows_of, shape_of


def peak_flops(name: str, dtype: str) -> float | None:
    """Operations that a GPU can do in a second, by its name; None where that is not known here."""
    for part, (half, single) in PEAKS.items():
        if re.search(rf"\b{part}\b", name):  # "L4" is not in "L40"
            return {"bfloat16": half, "float16": half, "float32": single}.get(dtype)
    return None


def model_flops(model: Model, steps: Steps) -> int:
    """Operations of the model in a step, all ranks together, without what is computed again."""
    return costs.step_flops(steps.batch, shape_of(model), rows_of(model, steps.batch))


def memory(world: World) -> int:
    """The most bytes that this rank has held so far, on its GPU or in its process."""
    if world.device.type == "cuda":
        return torch.accelerator.max_memory_allocated(world.device)
    # macOS counts bytes, Linux units of 1024.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
