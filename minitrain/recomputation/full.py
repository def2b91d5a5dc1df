"""Full recomputation: of every block only the input is kept, and backward computes the block again.

**Idea.** What a block keeps for backward is about 16 times its input, and can be computed again from its input. So keep
the inputs only. When backward comes to a block, call it once more, go backward through it, and drop all it kept before
the next block is called.

**Source.** Chen et al. 2016, "Training deep nets with sublinear memory cost", §4; Korthikanti et al. 2022, "Reducing
activation recomputation in large transformer models", §5, for the transformer. Older: Griewank & Walther 2000,
"Algorithm 799: revolve".

**What each rank holds.** Between forward and backward L·bsh elements for L blocks, instead of L times 16·bsh and more.
In backward also what one block keeps.

**What is sent, when and why.** Nothing for recomputation's sake. But a block that communicates in its forward
(tensor-parallel layers do) communicates again when it is computed again, on all ranks in the same order.

**Cost.** `minitrain.costs.recomputation`: bytes by `gpt_kept` and `gpt_peak`; the blocks' forward once more, which is a
third of a step (`full_share`). With `early_stop.checkpoint` a block's last product is left out, a third of that third.

**Also called.** Activation checkpointing, gradient checkpointing, rematerialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.utils.checkpoint
from torch import nn

from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations
from minitrain.models.gpt import GPT
from minitrain.recomputation import early_stop, lesson
from minitrain.recomputation.checkpoint import checkpoint
from minitrain.runtime import Claim, World, run


def recompute(blocks: Iterable[nn.Module], checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each block keep its inputs only, and be computed again in backward. Works in place; names stay as they are.

    Only `block.forward` is replaced, so a block's hooks stay around it and are called once: ZeRO-3, for which each
    block is a unit, gathers a block's parameters before its backward, which computes it again, and frees them after.
    Hooks of modules inside the block are called each time. Hooks on parameters, as data parallelism has them, are
    called once in backward as always. Only to a parameter that several blocks share each block adds by itself, so
    that its hook is called several times; `early_stop.checkpoint` avoids that, and is also what a schedule needs that
    asks for gradients of inputs and of weights apart (zero bubble). `del block.forward` undoes it all.

    Args:
        blocks: Modules whose forward does the same each time, with any arguments and results. `gpt.blocks`, say.
        checkpoint: Calls a function and keeps its arguments: ours, that of `early_stop`, or torch's. To it go options,
            as `partial(checkpoint, preserve_random_state=False)`.

    Raises:
        ValueError: There is no block, or one of them is recomputed already.

    Source: Chen et al. 2016, §4.
    """
    chosen = list(dict.fromkeys(blocks))  # a block that stands in the model twice is still one
    check(chosen)
    for block in chosen:
        # A partial over a bound method: a deep copy of the block then computes with the copy's own parameters.
        block.forward = partial(checkpoint, block.forward)


def check(blocks: list[nn.Module]) -> None:
    """Raise where blocks cannot be made to be recomputed."""
    if not blocks:
        raise ValueError("blocks is empty, and nothing would be recomputed; give the modules, such as gpt.blocks")
    for number, block in enumerate(blocks):
        if {"forward", "_call_impl"} & vars(block).keys():
            raise ValueError(
                f"blocks[{number}] ({type(block).__name__}) is recomputed already, or its forward was replaced by "
                "something else; choose full, every_kth or selective once, on a model as it was built"
            )


def demo(
    world: World, layers: int = 4, hidden: int = 32, heads: int = 2, batch: int = 2, sequence: int = 32
) -> list[Claim]:
    """Recomputes every block of a GPT; the table shows bytes kept, operations done again, and that gradients are equal.

    Args:
        layers: Blocks of the GPT.
        hidden: Width of the residual stream.
        heads: Attention heads.
        batch: Sequences in each rank's batch.
        sequence: Tokens in a sequence.
    """
    trial = lesson.Trial(world, layers, hidden, heads, batch, sequence)
    plain, full = trial.step(), trial.step(every_block)
    world.figure(lambda: lesson.over_time({"nothing recomputed": plain, "every block recomputed": full}))
    widths, chen, section = (batch, sequence, hidden), f"{lesson.CHEN}, §4", f"{lesson.KORTHIKANTI}, §5"
    whole, peak = (of(*trial.sizes, fused=False) for of in (gpt_activations, costs.gpt_peak))
    kept = costs.gpt_kept(*widths, layers, trial.vocabulary)
    formula = "4L(16bsh + 4bs + abs² + s²/4) + ends"
    claims = [
        Claim("bytes kept after forward, nothing recomputed", formula, whole, plain.kept, "B", section),
        Claim("bytes kept after forward, blocks recomputed", "4Lbsh + ends", kept, full.kept, "B", section),
        Claim(
            "most bytes kept at once, blocks recomputed", "4(L−1)bsh + a block + 8(bs + s)", peak, full.peak, "B", chen
        ),
    ]
    once = trial.operations()
    again = layers * costs.layer_flops(*widths)
    early = again - layers * costs.last_product_flops(*widths)
    for what, formula, predicted, how in (
        ("operations done again: the blocks' forward", "L(24bsh² + 4bs²h)", again, every_block),
        ("operations done again, stopping early", "L(16bsh² + 4bs²h)", early, every_block_early),
    ):
        claims.append(
            Claim(what, formula, predicted, trial.operations(how) - once, "1", f"{lesson.KORTHIKANTI}, appendix A")
        )
    theirs = {f"of torch's checkpoint, use_reentrant={kind}": every_block_by_torch(kind) for kind in (True, False)}
    claims += lesson.same(trial, every_block, {"when stopping early": every_block_early, **theirs})
    claims.append(lesson.sees_a_difference(trial, every_block, every_block_without_random_state))
    ways = {"nothing recomputed": lesson.nothing, "every block": every_block, "stopping early": every_block_early}
    for what, how in {**ways, "torch's checkpoint": every_block_by_torch(False)}.items():
        trial.timed(what, how)
    return claims


def every_block(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    recompute(gpt.blocks)


def every_block_early(gpt: GPT) -> None:
    """The same, and leave out the end of a block's second forward."""
    recompute(gpt.blocks, early_stop.checkpoint)


def every_block_without_random_state(gpt: GPT) -> None:
    """Break it: dropout drops other elements the second time."""
    recompute(gpt.blocks, partial(checkpoint, preserve_random_state=False))


def every_block_by_torch(use_reentrant: bool) -> lesson.How:
    """The same with torch's own checkpoint."""
    theirs = partial(torch.utils.checkpoint.checkpoint, use_reentrant=use_reentrant)
    return lambda gpt: recompute(gpt.blocks, theirs)


if __name__ == "__main__":
    run(demo)
