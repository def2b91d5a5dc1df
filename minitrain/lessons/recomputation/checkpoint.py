"""The lesson of `minitrain.recomputation.checkpoint`: bytes kept, operations done again, and equal gradients."""

from __future__ import annotations

import math

import torch

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.lessons.pictures import recomputation as pictures
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.gpt import GPT
from minitrain.recomputation import checkpoint
from minitrain.recomputation.full.every_block import every_block, every_block_early


def demo(world: World) -> list[Claim]:
    """Recomputes every block of a GPT; the table shows bytes kept, operations done again, and equal gradients."""
    rows, layers, widths = Rows(f"{lesson.KORTHIKANTI}, §5"), 5, (3, 24, 32)  # sequences, tokens, width
    trial = lesson.Trial(world, layers, widths[2], 4, *widths[:2])
    plain, once = trial.step(), trial.operations()
    forms: dict[str, lesson.How] = {"small form": small_form, "full form": every_block}
    for name, how in forms.items():
        step, both = trial.step(how), "small form and full form"
        predicted = costs.gpt_kept(*widths, layers, trial.vocabulary)
        what = f"{both}: bytes kept after forward, blocks recomputed"
        rows.add(what, "4Lbsh + ends", predicted, step.kept, case=name)
        what, formula = f"{both}: most bytes kept at once, blocks recomputed", "4(L−1)bsh + a block + 8(bs + s)"
        most, source = costs.gpt_peak(*trial.sizes, fused=False), f"{lesson.CHEN}, §4"
        rows.add(what, formula, most, step.peak, "B", source, case=name)
        what = "operations done again: the blocks' forward, in the small form and in the full one"
        again, source = layers * costs.layer_flops(*widths), f"{lesson.KORTHIKANTI}, appendix A"
        rows.add(what, "L(24bsh² + 4bs²h)", again, trial.operations(how) - once, "1", source, case=name)

    ways = {**forms, "stopping early": every_block_early}
    # The allocator also sees torch's random state on the CPU, R bytes, and, stopping early, the number by which scores
    # are divided. A GPU's allocator rounds each tensor up.
    random, slack = (torch.get_rng_state().nbytes, 0) if world.device.type == "cpu" else (0, 512 * 20)
    for name, how in ways.items():
        what = f"{', '.join(ways)}: bytes that one more block adds to the allocator's peak of a step"
        own = 4 * math.prod(widths) + random + 8 * (how is every_block_early)
        more = lesson.one_more_block(trial, how)
        rows.add(what, "4bsh + R", own, more, "B", "derived", case=name, absolute=slack)
    lesson.equal(rows, trial, ways)
    every = trial.step(every_block)
    world.figure(lambda: pictures.over_time({"nothing recomputed": plain, "every block recomputed": every}))
    return rows.claims()


def small_form(gpt: GPT) -> None:
    """Keep the inputs of blocks only."""
    checkpoint.recompute(gpt.blocks)
