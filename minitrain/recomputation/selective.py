"""Selective recomputation: only the core of attention is computed again, which keeps much and costs little.

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

from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations
from minitrain.models.gpt import GPT, CausalAttention
from minitrain.recomputation import full, lesson
from minitrain.recomputation.checkpoint import checkpoint
from minitrain.runtime import Claim, World, run


def recompute(module: nn.Module, checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each `CausalAttention` inside `module` keep query, key and value only. Works in place; names stay.

    Args:
        module: A GPT, or anything that has cores of attention among its parts. Those of a tensor-parallel layer do.
        checkpoint: Calls a function and keeps its arguments, as in `full.recompute`.

    Raises:
        ValueError: There is no core of attention in it, or one is recomputed already.

    Source: Korthikanti et al. 2022, §5.
    """
    cores = [part for part in module.modules() if isinstance(part, CausalAttention)]
    if not cores:
        raise ValueError(f"module ({type(module).__name__}) has no CausalAttention among its parts; give a GPT, say")
    full.recompute(cores, checkpoint)


def demo(
    world: World, layers: int = 4, hidden: int = 32, heads: int = 4, batch: int = 2, sequence: int = 64
) -> list[Claim]:
    """Recomputes the cores of attention; the table shows bytes kept, and the small part of work that is done again.

    Args:
        layers: Blocks of the GPT.
        hidden: Width of the residual stream.
        heads: Attention heads.
        batch: Sequences in each rank's batch.
        sequence: Tokens in a sequence.
    """
    trial = lesson.Trial(world, layers, hidden, heads, batch, sequence)
    ways = {"nothing": lesson.nothing, "attention core": cores, "every block": every_block}
    steps = {name: trial.step(how) for name, how in ways.items()}
    work = {name: trial.operations(how) for name, how in ways.items()}
    world.figure(lambda: lesson.trade({name: (steps[name].peak, work[name]) for name in ways}))

    widths, section = (batch, sequence, hidden), f"{lesson.KORTHIKANTI}, §5"
    whole = gpt_activations(*trial.sizes, fused=False)
    ends = costs.gpt_ends(batch, sequence, hidden, trial.vocabulary)
    selective = layers * costs.gpt_layer_selective(batch, sequence, hidden, heads) + ends
    again = layers * costs.core_flops(*widths)
    kept, once = {name: step.kept for name, step in steps.items()}, work["nothing"]
    core, full_again = work["attention core"] - once, work["every block"] - once
    shares = [of(*widths, layers, trial.vocabulary) for of in (costs.selective_share, costs.full_share)]
    appendix = f"{lesson.KORTHIKANTI}, appendix A"
    formula = "4L(16bsh + 4bs + abs² + s²/4) + ends"
    claims = [
        Claim("bytes kept after forward, nothing recomputed", formula, whole, kept["nothing"], "B", section),
        Claim(
            "bytes kept after forward, cores recomputed",
            "4L(16bsh + 4bs) + ends",
            selective,
            kept["attention core"],
            "B",
            section,
        ),
        Claim("operations done again: the cores' forward", "4Lbs²h", again, core, source=appendix),
        Claim("these as a part of the step's", "near s/(18h + 3s)", shares[0], core / once, source=appendix),
        Claim("the same of full recomputation", "near 1/3", shares[1], full_again / once, source=appendix),
    ]
    claims += lesson.same(trial, cores, {"with every block recomputed": every_block})
    for name, how in ways.items():
        trial.timed(f"recomputed: {name}", how)
    return claims


def cores(gpt: GPT) -> None:
    """Keep query, key and value only, of all that a core keeps."""
    recompute(gpt)


def every_block(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    full.recompute(gpt.blocks)


if __name__ == "__main__":
    run(demo)
