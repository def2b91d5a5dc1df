"""The lesson of `minitrain.composition.layout`: the table of parameters, against what ranks hold.

The table is worked out from what each technique has declared about a parameter. What ranks really hold is counted:
every rank says which elements of which tensor its optimizer steps, and how many ranks step the same is a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from minitrain.checkpointing.full.state import state_of
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.composition.step import Training
from minitrain.costs import composition as costs
from minitrain.lessons.composition.common import label, small_model, small_steps
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.full.plan_time import shape_of
from minitrain.train import build

ELEMENTS = "L(12h² + 13h) + (V + s)h + 2h, and of experts E times 8h² + 5h, and hE, in place of 8h² + 5h"


def demo(world: World) -> list[Claim]:
    """Arranges the ranks in every layout that they allow; the table shows who holds which element."""
    rows = Rows()
    for settings in every(world.size):
        training, case = build(settings, world.device), label(settings)
        wrong, elements = holders(training)
        what = "parameters whose elements are not stepped by as many ranks as the table says, in every layout"
        rows.add(what, "Π of the ranks along the axes that hold it", 0, len(wrong), "1", case=case)
        what, whole = "elements that count in a norm, over all ranks, in every layout", shape_of(settings.model)
        found, source = sum(gather_objects(elements)), "Rajbhandari et al. 2022, §5.2"
        rows.add(what, ELEMENTS, costs.model_parameters(whole), found, "1", source, case=case)
        training.close()
    return rows.claims()


def every(ranks: int) -> Iterator[Settings]:
    """ZeRO-1 in each layout that so many ranks allow, sequence-parallel where it can be; with cp; with experts."""
    model, steps = small_model(ranks), small_steps(ranks)
    for layout in fitting(model, Layout(), steps, ranks):
        yield Settings(model, replace(layout, zero=1, sequence_parallel=layout.tp > 1), steps)
    if ranks > 1:
        yield Settings(model, Layout(dp=ranks // 2, cp=2, zero=1) if ranks % 2 == 0 else Layout(cp=ranks), steps)
    for ep in {ranks, ranks // 2} - {0, 1} if ranks % 2 == 0 else ():
        yield Settings(replace(model, experts=ranks + 1), Layout(dp=ranks, ep=ep, zero=1), steps)


def holders(training: Training) -> tuple[list[str], int]:
    """Compare the table with what ranks hold; all ranks call it.

    Returns:
        Names of this rank's parameters of which the table does not say how many ranks step the same elements; and the
        number of this rank's elements that the table calls the first, or only, of those.
    """
    spreads, state = training.gradients.spread, state_of(training.part, training.gradients)
    mine = {
        name: [[slice(at, at + size) for at, size in zip(each.offsets, each.tensor.shape, strict=True)] for each in own]
        for name in spreads
        if (own := state[f"model.{name}"].shards if f"model.{name}" in state else None) is not None
    }
    counts = {name: torch.zeros(training.part.shapes[name], dtype=torch.int32) for name in mine}
    for theirs in gather_objects(mine):
        for name in theirs.keys() & counts.keys():
            for region in theirs[name]:
                counts[name][tuple(region)] += 1
    stepped = [(name, counts[name][tuple(region)]) for name, regions in mine.items() for region in regions]
    wrong = {name for name, found in stepped if bool((found != math.prod(spreads[name].held.values())).any())}
    return sorted(wrong), sum(found.numel() for name, found in stepped if spreads[name].first)
