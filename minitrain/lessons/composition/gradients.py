"""The lesson of `minitrain.composition.gradients`: gradients and norm in every layout are one device's."""

from __future__ import annotations

from dataclasses import replace

from minitrain.comm import World
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Takes gradients of one batch in every layout of the ranks; the table shows one device's, and their norm."""
    rows, steps = Rows("heuristic, no proof"), lesson.small_steps(world.size)
    settings = Settings(lesson.small_model(world.size), Layout(), steps)
    one = lesson.one_device(settings, 1, world.device)
    largest = max(gradient.abs().max().item() for gradient in one.gradients.values())
    bound, larger = lesson.rounding(settings), max(one.reports[0].loss, one.reports[0].norm)
    for layout in fitting(settings.model, Layout(), steps, world.size):
        zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
        cut = replace(layout, microbatches=layout.pp, sequence_parallel=layout.tp > 1, zero=zero)
        found, case = lesson.distance(replace(settings, layout=cut), one, world.device), str(layout)
        what = "gradients of this rank's shards, distance from one device's, in every layout"
        of_largest = "6Ku of the largest"
        rows.add(what, of_largest, bound * largest, found.gradients, "1", case=case, how="compared", relation="<=")
        what = "loss and norm, distance from one device's, in every layout"
        of_larger = "6Ku of the larger"
        rows.add(what, of_larger, bound * larger, found.reports, "1", case=case, how="compared", relation="<=")
    return rows.claims()
