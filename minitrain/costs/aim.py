"""The aim of the course in numbers: one job, from which all chapters take theirs.

`minitrain.costs.roofline.SEVEN_BILLION` is trained on two trillion tokens, on H100 GPUs whose products reach half of
the peak. Chapter 00 shows the table; a chapter that departs from it says so.
"""

from __future__ import annotations

from minitrain.costs import zero
from minitrain.costs.composition import model_parameters
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION
from minitrain.costs.time_bar import HALF, data_parallel_bar

GPUS = 64
GPU = MACHINES["H100"]
TOKENS = 2e12
SEQUENCES = 2048  # in a step, of all GPUs together
TOKENS_PER_STEP = SEQUENCES * SEVEN_BILLION.positions
STEPS = TOKENS / TOKENS_PER_STEP
PARAMETERS = model_parameters(SEVEN_BILLION)


def numbers() -> dict[str, str]:
    """The table of chapter 00: what -> its value in words."""
    step = data_parallel_bar(SEVEN_BILLION, GPU, GPUS, TOKENS_PER_STEP).step
    alone, shape = GPUS * step, SEVEN_BILLION
    return {
        "parameters": f"{PARAMETERS / 1e9:.2f} billion: {shape.layers} layers of width {shape.hidden:,}",
        "tokens": f"{TOKENS / 1e12:.0f} trillion, in {STEPS:,.0f} steps",
        "a step": f"{SEQUENCES:,} sequences of {shape.positions:,} tokens, {TOKENS_PER_STEP / 1e6:.1f} million in all",
        "model states": f"16 bytes per parameter, {sum(zero.state_bytes(0, PARAMETERS, 1).values()) / 1e9:.1f} GB",
        "a GPU": f"{GPU.name}: {GPU.size / 1e9:.0f} GB, {GPU.flops / 1e12:.0f} TFLOP/s in 16 bits at its peak, "
        f"{HALF.products * GPU.flops / 1e12:.0f} in training",
        "one GPU": f"{alone:.0f} s per step, {alone * STEPS / 86400 / 365:.1f} years",
        f"{GPUS} GPUs": f"{step:.1f} s per step, {step * STEPS / 86400:.0f} days",
    }
