"""The lesson of `minitrain.composition.layout`: every group where it should be, and the table against what ranks hold.

The table is worked out from what each technique has declared about a parameter. What ranks really hold is counted:
every rank says which elements of which tensor its optimizer steps, and how many ranks step the same is a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch.distributed import get_process_group_ranks as members

from minitrain.checkpointing.full.state import state_of
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.composition.step import Training
from minitrain.costs import composition as costs
from minitrain.lessons.composition.common import label, small_model, small_steps
from minitrain.lessons.pictures import composition as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.full.plan_time import shape_of
from minitrain.train import build

ELEMENTS = "L(12h² + 13h) + (V + s)h + 2h, and of experts E times 8h² + 5h, and hE, in place of 8h² + 5h"
# What does not vary along each axis.
FIXED = {"tp": ("pp", "dp", "cp"), "cp": ("pp", "dp", "tp"), "dp": ("pp", "cp", "tp"), "pp": ("dp", "cp", "tp")}
FIXED |= {"experts": ("pp", "cp", "tp", "replicas"), "replicas": ("pp", "cp", "tp", "experts")}


def demo(world: World) -> list[Claim]:
    """Arranges the ranks in every layout that they allow; the table shows groups, and who holds which element."""
    rows, pictured = Rows(), 0
    for settings in every(world.size):
        training, layout, case = build(settings, world.device), settings.layout, label(settings)
        apart = "1 (tp), tp (cp), cp·tp (dp), dp·cp·tp (pp) apart"
        what = f"of a group's ranks those at another place of another axis, or not {apart}"
        rows.add(what, "0", 0, elsewhere(training), "1", "Narayanan et al. 2021, §3", case=case)
        wrong, elements = holders(training)
        what = "parameters whose elements are not stepped by as many ranks as the table says, in every layout"
        rows.add(what, "Π of the ranks along the axes that hold it", 0, len(wrong), "1", case=case)
        what, whole = "elements that count in a norm, over all ranks, in every layout", shape_of(settings.model)
        found, source = sum(gather_objects(elements)), "Rajbhandari et al. 2022, §5.2"
        rows.add(what, ELEMENTS, costs.model_parameters(whole), found, "1", source, case=case)
        if (used := sum(size > 1 for size in (layout.dp, layout.pp, layout.tp))) >= pictured:
            groups = {name: members(getattr(training.axes, name)) for name in ("pp", "dp", "tp")}
            pictured, where = used, gather_objects((world.rank, training.axes.place, groups))
            world.figure(lambda where=where: pictures.mesh(where))
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


def elsewhere(training: Training) -> int:
    """How many ranks of this rank's groups are at another place of an axis that the group's own leaves fixed.

    And how many of the groups have other ranks in between, or their ranks in another order.
    """
    axes, layout = training.axes, training.settings.layout
    places, wrong = gather_objects(axes.place), 0
    for axis, fixed in FIXED.items():
        along = [places[rank] for rank in members(getattr(axes, axis))]
        wrong += sum(any(place[name] != axes.place[name] for name in fixed) for place in along)
        wrong += [place[axis] for place in along] != list(range(getattr(layout, axis, len(along))))
    inner = layout.cp * layout.tp
    for axis, stride in {"tp": 1, "cp": layout.tp, "dp_cp": layout.tp, "dp": inner, "pp": layout.dp * inner}.items():
        wrong += any(after - before != stride for before, after in pairwise(members(getattr(axes, axis))))
    return wrong


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
