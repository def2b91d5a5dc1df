"""The initial weights of a GPT, each from its name and a seed alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def initial_weight(name: str, shape: Sequence[int], layers: int, seed: int) -> Tensor:
    """The initial value of one parameter, as in GPT-2: normal with deviation 0.02, biases 0, norms 1.

    The two projections of each block that write to the residual stream get 0.02/√(2·layers): the stream is a
    sum of 2·layers of them, and so its variance does not grow with depth (Radford et al. 2019, §2.3).

    The numbers depend on name and seed alone, and are drawn on the CPU in float32. So a rank that holds only some of
    the parameters, or uses another device or dtype, starts from the same values.

    Args:
        name: The parameter's full name in `GPT`, such as "blocks.3.mlp.down.weight".
        shape: Its whole shape.
        layers: Number of blocks of the whole model.
        seed: Any integer.

    Returns:
        A float32 tensor on the CPU.
    """
    if name.endswith("bias"):
        return torch.zeros(*shape, dtype=torch.float32, device="cpu")
    if name.endswith("norm.weight"):
        return torch.ones(*shape, dtype=torch.float32, device="cpu")
    residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
    deviation = 0.02 / math.sqrt(2 * layers) if residual else 0.02
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little"))
    return deviation * torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")
