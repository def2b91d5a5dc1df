"""`minitrain.recomputation.selective` for any module with cores of attention, a `checkpoint` of choice, and checks.

It also works in tensor-parallel layers, and sends nothing: a rank that holds a head holds all that its core needs.

**Cost.** `minitrain.costs.recomputation`: bytes by `gpt_layer_selective`; operations 4bs²h per block, nearly s/(18h +
3s) of a step (`selective_share`).
Also called `--recompute-granularity selective` (Megatron-LM). With fused attention (FlashAttention, Dao et al. 2022)
the scores are never kept, so there is nothing left to save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from minitrain.models.gpt import CausalAttention
from minitrain.recomputation.full import every_block as full
from minitrain.recomputation.full.checkpoint import checkpoint


def recompute(module: nn.Module, checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each `CausalAttention` inside `module` keep only query, key and value. Works in place; names stay.

    Args:
        module: A GPT, or any module with cores of attention among its parts. Those of a tensor-parallel layer count.
        checkpoint: Calls a function and keeps its arguments, as in `every_block.recompute`.

    Raises:
        ValueError: There is no core of attention in it, or one is recomputed already.

    Source: Korthikanti et al. 2022, §5.
    """
    cores = [part for part in module.modules() if isinstance(part, CausalAttention)]
    if not cores:
        raise ValueError(f"module ({type(module).__name__}) has no CausalAttention among its parts; give a GPT, say")
    # Cores as blocks: nothing else differs.
    full.recompute(cores, checkpoint)


cores, every_block = recompute, full.every_block
