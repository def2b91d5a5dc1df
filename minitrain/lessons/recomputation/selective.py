"""The lesson of `minitrain.recomputation.selective`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import common as lesson
from minitrain.recomputation import selective as small
from minitrain.recomputation.full.selective import cores, every_block

APPENDIX = f"{lesson.KORTHIKANTI}, appendix A"


def demo(
    world: World, layers: int = 3, hidden: int = 32, heads: int = 4, batch: int = 2, sequence: int = 64
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
    forms: dict[str, lesson.How] = {"small form": small.recompute, "full form": cores}
    ways = {"nothing": lesson.nothing, "attention core": cores, "every block": every_block}
    steps = {name: trial.step(how) for name, how in ways.items()}
    work = {name: trial.operations(how) for name, how in ways.items()}
    world.figure(lambda: lesson.trade({name: (steps[name].peak, work[name]) for name in ways}))

    widths, section = (batch, sequence, hidden), f"{lesson.KORTHIKANTI}, §5"
    whole = gpt_activations(*trial.sizes, fused=False)
    ends = costs.gpt_ends(*widths, trial.vocabulary)
    block = costs.gpt_layer_selective(*widths, heads)
    after, adds, again = {}, {}, {}
    for name, how in forms.items():
        found = trial.step(how).kept
        after[name] = Claim("", "4L(16bsh + 4bs) + ends", layers * block + ends, found, "B", section)
        adds[name] = trial.one_more_block(how, block, "4(16bsh + 4bs)")
        operations = trial.operations(how) - work["nothing"]
        again[name] = Claim("", "4Lbs²h", layers * costs.core_flops(*widths), operations, source=APPENDIX)
    both = " and ".join(forms)
    formula = "4L(16bsh + 4bs + abs² + s²/4) + ends"
    claims = [
        fold(f"{both}: bytes kept after forward, cores recomputed", after, key=True),
        fold(f"{both}: bytes that one more block adds to the allocator's peak of a step", adds),
        fold(f"{both}: operations done again, the cores' forward", again, key=True),
        Claim("bytes kept after forward, nothing recomputed", formula, whole, steps["nothing"].kept, "B", section),
        *shares(trial, work),
        *lesson.same(trial, forms, {"every block": every_block}),
    ]
    for name, how in ways.items():
        trial.timed(f"recomputed: {name}", how)
    return claims


def shares(trial: lesson.Trial, work: dict[str, int]) -> list[Claim]:
    """Claims on what recomputation adds to a step's operations, as a part of them."""
    sizes, once = (trial.batch, trial.sequence, trial.hidden, trial.layers, trial.vocabulary), work["nothing"]
    ways = (
        ("attention core", "the core", "s/(18h + 3s + 3V/2L)", costs.selective_share(*sizes)),
        ("every block", "every block", "(6h + s)/(18h + 3s + 3V/2L), nearly 1/3", costs.full_share(*sizes)),
    )
    return [
        Claim(
            f"operations that recomputing {words} adds, as a part of the step's",
            formula,
            predicted,
            (work[name] - once) / once,
            source=APPENDIX,
            key=True,
        )
        for name, words, formula, predicted in ways
    ]
