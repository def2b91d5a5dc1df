"""`minitrain.recomputation.selective` for any module with cores of attention, a `checkpoint` of choice, and checks.

Selective recomputation: only the core of attention is computed again, which keeps much and costs little.

**Idea.** Of all that a block keeps, the s × s scores of attention are the part that grows with the square of the
sequence. And they are cheap: the two products that need them are a small part of a block's. So keep query, key and
value, which are kept anyway, and compute the core, softmax(QKᵀ/√d)V, again in backward.

**Source.** Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", §5.

**What each rank holds.** 16·bsh elements a block and some small ones, instead of 16·bsh + abs².

**What is sent, when and why.** Nothing: a core belongs to its heads, and a rank that holds a head holds all it needs.

**Cost.** `minitrain.costs.recomputation`: bytes by `gpt_layer_selective`; operations 4bs²h a block, nearly s/(18h + 3s)
of a step (`selective_share`): 0.9 % for GPT-3.

**Also called.** `--recompute-granularity selective` in Megatron-LM. FlashAttention (Dao et al. 2022) does it inside its
kernel: with fused attention the scores are never kept, and there is nothing left for this file to save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from minitrain.models.gpt import GPT, CausalAttention
from minitrain.recomputation.full import every_block as full
from minitrain.recomputation.full.checkpoint import checkpoint


def recompute(module: nn.Module, checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each `CausalAttention` inside `module` keep query, key and value only. Works in place; names stay.

    Args:
        module: A GPT, or anything that has cores of attention among its parts. Those of a tensor-parallel layer do.
        checkpoint: Calls a function and keeps its arguments, as in `every_block.recompute`.

    Raises:
        ValueError: There is no core of attention in it, or one is recomputed already.

    Source: Korthikanti et al. 2022, §5.
    """
    cores = [part for part in module.modules() if isinstance(part, CausalAttention)]
    if not cores:
        raise ValueError(f"module ({type(module).__name__}) has no CausalAttention among its parts; give a GPT, say")
    full.recompute(cores, checkpoint)


def cores(gpt: GPT) -> None:
    """Keep query, key and value only, of all that a core keeps."""
    recompute(gpt)


def every_block(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    full.recompute(gpt.blocks)
