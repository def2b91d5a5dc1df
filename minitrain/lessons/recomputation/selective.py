"""The lesson of `minitrain.recomputation.selective`: bytes kept, the small part of work done again, equal gradients."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.pictures import recomputation as pictures
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.rows import Rows
from minitrain.recomputation.full.selective import cores, every_block
from minitrain.recomputation.selective import recompute


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
    rows = Rows(f"{lesson.KORTHIKANTI}, appendix A")
    trial, widths = lesson.Trial(world, layers, hidden, heads, batch, sequence), (batch, sequence, hidden)
    forms: dict[str, lesson.How] = {"small form": recompute, "full form": cores}
    once, every = trial.operations(), trial.operations(every_block)
    kept = layers * costs.gpt_layer_selective(*widths, heads) + costs.gpt_ends(*widths, trial.vocabulary)
    for name, how in forms.items():
        what, found = "small form and full form: bytes kept after forward, cores recomputed", trial.step(how).kept
        rows.add(what, "4L(16bsh + 4bs) + ends", kept, found, "B", f"{lesson.KORTHIKANTI}, §5", case=name)
        what, again = (
            "small form and full form: operations done again, the cores' forward",
            trial.operations(how) - once,
        )
        rows.add(what, "4Lbs²h", layers * costs.core_flops(*widths), again, "1", case=name)
    shares, work = (*widths, layers, trial.vocabulary), trial.operations(recompute)
    for name, formula, share, adds in (
        ("the core", "s/(18h + 3s + 3V/2L)", costs.selective_share(*shares), work - once),
        ("every block", "(6h + s)/(18h + 3s + 3V/2L), nearly 1/3", costs.full_share(*shares), every - once),
    ):
        rows.add(f"operations that recomputing {name} adds, as a part of the step's", formula, share, adds / once, "1")
    lesson.equal(rows, trial, forms)
    points = {"nothing": (trial.step().peak, once), "attention core": (trial.step(recompute).peak, work)}
    points["every block"] = (trial.step(every_block).peak, every)
    world.figure(lambda: pictures.trade(points))
    return rows.claims()
