"""The lesson of `minitrain.recomputation.checkpoint`: what its demo claims, and how that is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch.utils.checkpoint

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations, gpt_layer_activations
from minitrain.lessons.claims import Claim, fold
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
    world: World, layers: int = 5, hidden: int = 32, heads: int = 4, batch: int = 3, sequence: int = 24
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
    forms: dict[str, lesson.How] = {"small form": small_form, "full form": every_block}
    ours = {**forms, "stopping early": every_block_early}
    plain, steps = trial.step(), {name: trial.step(how) for name, how in forms.items()}
    world.figure(lambda: lesson.over_time({"nothing recomputed": plain, "every block recomputed": steps["full form"]}))
    theirs = {f"torch's checkpoint, use_reentrant={kind}": every_block_by_torch(kind) for kind in (True, False)}
    claims = [
        *kept(trial, plain, steps),
        allocator(trial, ours),
        *done_again(trial, forms),
        *lesson.same(trial, ours, theirs),
        lesson.sees_a_difference(trial, every_block, every_block_without_random_state),
    ]
    ways = {"nothing recomputed": lesson.nothing, "every block": every_block, "stopping early": every_block_early}
    for what, how in {**ways, "torch's checkpoint": every_block_by_torch(False)}.items():
        trial.timed(what, how)
    return claims


def kept(trial: lesson.Trial, plain: lesson.Step, steps: dict[str, lesson.Step]) -> list[Claim]:
    """Claims on what autograd keeps after forward, and at most at once."""
    batch, sequence, hidden, heads, layers, vocabulary = trial.sizes
    section, chen = f"{lesson.KORTHIKANTI}, §5", f"{lesson.CHEN}, §4"
    after, most = {}, {}
    # Where the head is large, the worst moment is the end of forward.
    wide = replace(trial, vocabulary=20 * vocabulary)
    for name, sizes, step in (
        *((name, trial.sizes, step) for name, step in steps.items()),
        ("full form, a large vocabulary", wide.sizes, wide.step(every_block)),
    ):
        predicted = costs.gpt_kept(batch, sequence, hidden, layers, sizes[-1])
        after[name] = Claim("", "4Lbsh + ends", predicted, step.kept, "B", section)
        formula = "4(L−1)bsh + a block + 8(bs + s)"
        most[name] = Claim("", formula, costs.gpt_peak(*sizes, fused=False), step.peak, "B", chen)
    whole, formula = gpt_activations(*trial.sizes, fused=False), "4L(16bsh + 4bs + abs² + s²/4) + ends"
    names = " and ".join(steps)
    return [
        fold(f"{names}: bytes kept after forward, blocks recomputed", after, key=True),
        fold(f"{names}: most bytes kept at once, blocks recomputed", most, key=True),
        Claim("bytes kept after forward, nothing recomputed", formula, whole, plain.kept, "B", section),
    ]


def allocator(trial: lesson.Trial, ours: dict[str, lesson.How]) -> Claim:
    """The claim on what one more block adds to the allocator's peak.

    The number by which scores are divided, 8 bytes, is kept where the first call makes a graph; hooks do not see it.
    """
    batch, sequence, hidden, heads, *_ = trial.sizes
    own = 4 * batch * sequence * hidden
    cases = {
        name: trial.one_more_block(how, own + 8 * (how is every_block_early), "4bsh") for name, how in ours.items()
    }
    block = sum(gpt_layer_activations(batch, sequence, hidden, heads, fused=False).values()) + 8
    cases["nothing recomputed"] = trial.one_more_block(lesson.nothing, block, "a block", random=False)
    what = ", ".join(ours)
    return fold(f"{what}: bytes that one more block adds to the allocator's peak of a step", cases, key=True)


def done_again(trial: lesson.Trial, forms: dict[str, lesson.How]) -> list[Claim]:
    """Claims on the operations that recomputation adds to a step."""
    batch, sequence, hidden, _, layers, _ = trial.sizes
    appendix, once = f"{lesson.KORTHIKANTI}, appendix A", trial.operations()
    again = layers * costs.layer_flops(batch, sequence, hidden)
    cases = {
        name: Claim("", "L(24bsh² + 4bs²h)", again, trial.operations(how) - once, source=appendix)
        for name, how in forms.items()
    }
    early = again - layers * costs.last_product_flops(batch, sequence, hidden)
    measured, formula = trial.operations(every_block_early) - once, "L(16bsh² + 4bs²h)"
    return [
        fold("operations done again: the blocks' forward, in the small form and in the full one", cases, key=True),
        Claim("operations done again, stopping early", formula, early, measured, source="derived"),
    ]


def small_form(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    checkpoint.recompute(gpt.blocks)


def every_block_by_torch(use_reentrant: bool) -> lesson.How:
    """The same with torch's own checkpoint."""
    theirs = partial(torch.utils.checkpoint.checkpoint, use_reentrant=use_reentrant)
    return lambda gpt: recompute(gpt.blocks, theirs)
