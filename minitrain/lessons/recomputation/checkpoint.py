"""The lesson of `minitrain.recomputation.checkpoint`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

import torch.utils.checkpoint

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.recomputation import common as lesson
from minitrain.models.gpt import GPT
from minitrain.recomputation import checkpoint
from minitrain.recomputation.full.every_block import (
    every_block,
    every_block_early,
    every_block_without_random_state,
    recompute,
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
    small, form = trial.step(small_form), "small form: "
    again = layers * costs.layer_flops(*widths)
    claims = as_key(
        Claim(f"{form}bytes kept after forward", "4Lbsh + ends", kept, small.kept, "B", section),
        Claim(f"{form}most bytes kept at once", "4(L−1)bsh + a block + 8(bs + s)", peak, small.peak, "B", chen),
        Claim(
            f"{form}operations done again: the blocks' forward",
            "L(24bsh² + 4bs²h)",
            again,
            trial.operations(small_form) - trial.operations(),
            source=f"{lesson.KORTHIKANTI}, appendix A",
        ),
        *lesson.same(trial, small_form, {"of the full form": every_block}, form),
    )
    claims += [
        Claim("bytes kept after forward, nothing recomputed", formula, whole, plain.kept, "B", section),
        Claim("bytes kept after forward, blocks recomputed", "4Lbsh + ends", kept, full.kept, "B", section),
        Claim(
            "most bytes kept at once, blocks recomputed", "4(L−1)bsh + a block + 8(bs + s)", peak, full.peak, "B", chen
        ),
    ]
    once = trial.operations()
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


def small_form(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    checkpoint.recompute(gpt.blocks)


def every_block_by_torch(use_reentrant: bool) -> lesson.How:
    """The same with torch's own checkpoint."""
    theirs = partial(torch.utils.checkpoint.checkpoint, use_reentrant=use_reentrant)
    return lambda gpt: recompute(gpt.blocks, theirs)
