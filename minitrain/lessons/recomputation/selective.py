"""The lesson of `minitrain.recomputation.selective`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.costs.memory import gpt_activations
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.recomputation import common as lesson
from minitrain.recomputation import selective as small
from minitrain.recomputation.full.selective import cores, every_block


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
    found, form = trial.step(small.recompute), "small form: "
    claims = [
        Claim(
            f"{form}bytes kept after forward", "4L(16bsh + 4bs) + ends", selective, found.kept, "B", section, key=True
        ),
        Claim(
            f"{form}operations done again: the cores' forward",
            "4Lbs²h",
            again,
            trial.operations(small.recompute) - once,
            source=appendix,
        ),
        *as_key(*lesson.same(trial, small.recompute, {"of the full form": cores}, form)),
        Claim("bytes kept after forward, nothing recomputed", formula, whole, kept["nothing"], "B", section),
        Claim(
            "bytes kept after forward, cores recomputed",
            "4L(16bsh + 4bs) + ends",
            selective,
            kept["attention core"],
            "B",
            section,
        ),
        Claim("operations done again: the cores' forward", "4Lbs²h", again, core, source=appendix, key=True),
        Claim("these as a part of the step's", "near s/(18h + 3s)", shares[0], core / once, source=appendix, key=True),
        Claim("the same of full recomputation", "near 1/3", shares[1], full_again / once, source=appendix, key=True),
    ]
    claims += lesson.same(trial, cores, {"with every block recomputed": every_block})
    for name, how in ways.items():
        trial.timed(f"recomputed: {name}", how)
    return claims
