"""The lesson of `minitrain.recomputation.selective`: bytes kept, the small part of work done again, equal gradients."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import recomputation as costs
from minitrain.lessons.pictures import recomputation as pictures
from minitrain.lessons.recomputation import common as lesson
from minitrain.lessons.rows import Claim, Rows
from minitrain.recomputation.full.selective import cores, every_block
from minitrain.recomputation.selective import recompute


def demo(world: World) -> list[Claim]:
    """Recomputes the cores of attention; the table shows bytes kept, and the small part of work that is done again."""
    layers, heads, widths = 3, 4, (2, 64, 32)  # sequences, tokens, width
    rows, trial = Rows(f"{lesson.KORTHIKANTI}, appendix A"), lesson.Trial(world, layers, widths[2], heads, *widths[:2])
    forms: dict[str, lesson.How] = {"small form": recompute, "full form": cores}
    once = trial.operations()
    kept = layers * costs.gpt_layer_selective(*widths, heads) + costs.gpt_ends(*widths, trial.vocabulary)
    for name, how in forms.items():
        what, found = "small form and full form: bytes kept after forward, cores recomputed", trial.step(how).kept
        rows.add(what, "4L(16bsh + 4bs) + ends", kept, found, "B", f"{lesson.KORTHIKANTI}, §5", case=name)
        what = "small form and full form: operations done again, the cores' forward"
        again = trial.operations(how) - once
        rows.add(what, "4Lbs²h", layers * costs.core_flops(*widths), again, "1", case=name)
    lesson.equal(rows, trial, forms)
    ways = {"nothing": lesson.nothing, "attention core": recompute, "every block": every_block}
    points = {name: (trial.step(how).peak, trial.operations(how)) for name, how in ways.items()}
    world.figure(lambda: pictures.trade(points))
    return rows.claims()
