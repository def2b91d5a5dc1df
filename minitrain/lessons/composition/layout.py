"""What the demo of `layout` shows: every group where it should be, and the table of gradients against what ranks hold.

The table is worked out from what each technique has declared about a parameter. What ranks really hold is counted:
every rank says which elements of which tensor its optimizer steps, and how many ranks step the same is a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from minitrain.checkpointing.full.state import state_of
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.composition.step import Training
from minitrain.costs import composition as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.composition import common as lesson
from minitrain.planning.full.plan_time import shape_of
from minitrain.train import build

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARAYANAN, DEEPSPEED = "Narayanan et al. 2021, §3", "Rajbhandari et al. 2022, §5.2"
ELEMENTS = "L(12h² + 13h) + (V + s)h + 2h, and of experts E times 8h² + 5h, and hE, in place of 8h² + 5h"
# What does not vary along each axis.
FIXED = {"tp": ("pp", "dp", "cp"), "cp": ("pp", "dp", "tp"), "dp": ("pp", "cp", "tp"), "pp": ("dp", "cp", "tp")}
FIXED |= {"experts": ("pp", "cp", "tp", "replicas"), "replicas": ("pp", "cp", "tp", "experts")}


def claims(world: World, zero: Literal[0, 1]) -> list[Claim]:
    """All claims of the demo."""
    trainings = [build(settings, world.device) for settings in every(world, zero)]
    elsewhere, unlike, counted = 0, 0, {}
    for training in trainings:
        layout, model = training.settings.layout, training.settings.model
        inner = layout.cp * layout.tp
        strides = {"tp": 1, "cp": layout.tp, "dp_cp": layout.tp, "dp": inner, "pp": layout.dp * inner}
        elsewhere += strangers_in(training)
        elsewhere += sum(stride_of(getattr(training.axes, axis)) not in (0, each) for axis, each in strides.items())
        wrong, mine = holders(training)
        unlike += len(wrong)
        name = str(layout) + (f", {model.experts} experts" if model.experts else "")
        counted[name] = Claim(
            "", ELEMENTS, costs.model_parameters(shape_of(model)), sum(gather_objects(mine)), "1", DEEPSPEED
        )
    axes = max(trainings, key=lambda each: _axes_used(each.settings.layout)).axes
    where = gather_objects(
        (world.rank, axes.place, {name: members(getattr(axes, name)) for name in ("pp", "dp", "tp")})
    )
    for training in trainings:
        training.close()
    world.figure(lambda: picture(where))
    apart = "1 (tp), tp (cp), cp·tp (dp), dp·cp·tp (pp) apart"
    place = f"of a group's ranks those at another place of another axis, or not {apart}"
    table = "parameters whose elements are not stepped by as many ranks as the table says, in every layout"
    return [
        Claim(place, "0", 0, elsewhere, "1", NARAYANAN, key=True),
        Claim(table, "Π of the ranks along the axes that hold it", 0, unlike, source="derived", key=True),
        fold("elements that count in a norm, over all ranks, in every layout", counted, key=True),
    ]


def every(world: World, zero: Literal[0, 1]) -> Iterator[Settings]:
    """A training for each layout that so many ranks allow, sequence-parallel where it can be; with cp; with experts."""
    model, steps = lesson.small_model(world.size), lesson.small_steps(world.size)
    for layout in fitting(model, Layout(), steps, world.size):
        yield Settings(model, replace(layout, zero=zero, sequence_parallel=layout.tp > 1), steps)
    if world.size > 1:
        cp = 2 if world.size % 2 == 0 else world.size
        yield Settings(model, Layout(dp=world.size // cp, cp=cp, zero=zero), steps)
    experts = replace(model, experts=world.size + 1)
    for ep in sorted({world.size, world.size // 2} - {0, 1} if world.size % 2 == 0 else {world.size} - {1}):
        yield Settings(experts, Layout(dp=world.size, ep=ep, zero=zero), steps)


def _axes_used(layout: Layout) -> int:
    return sum(size > 1 for size in (layout.dp, layout.pp, layout.tp))


def members(group: dist.ProcessGroup) -> list[int]:
    """Global ranks of a group, in its order."""
    return dist.get_process_group_ranks(group)


def stride_of(group: dist.ProcessGroup) -> int:
    """How far neighbours in a group are apart, in global ranks; 0 in a group of one, −1 where it differs."""
    ranks = members(group)
    steps = {after - before for before, after in pairwise(ranks)}
    return 0 if len(ranks) == 1 else steps.pop() if len(steps) == 1 else -1


def strangers_in(training: Training) -> int:
    """How many ranks of this rank's groups differ from it in what their axis leaves fixed: they say where they are."""
    found, axes = 0, training.axes
    names = ("pp", "dp", "cp", "tp", "replicas", "experts")
    for axis, fixed in FIXED.items():
        group = getattr(axes, axis)
        mine = torch.tensor([axes.place[name] for name in names], device=training.device)
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, mine, group=group)  # over the group itself: only its members answer
        kept = [names.index(name) for name in fixed]
        found += sum(bool((theirs[kept] != mine[kept]).any()) for theirs in every)
        along = [int(theirs[names.index(axis)]) for theirs in every]
        found += along != list(range(getattr(axes.layout, axis, len(along))))
    return found


def holders(training: Training) -> tuple[list[str], int]:
    """Compare the table with what ranks hold; all ranks call it.

    Returns:
        Names of this rank's parameters of which the table does not say how many ranks step the same elements; and the
        number of this rank's elements that the table calls the first, or only, of those.
    """
    spreads, state = training.gradients.spread, state_of(training.part, training.gradients)
    mine = {
        name: [(shard.offsets, tuple(shard.tensor.shape)) for shard in state[f"model.{name}"].shards]
        for name in spreads
        if f"model.{name}" in state
    }
    counts = {name: torch.zeros(training.part.shapes[name], dtype=torch.int32) for name in mine}
    for theirs in gather_objects(mine):
        for name, regions in theirs.items():
            for offsets, sizes in regions if name in counts else ():
                counts[name][_slices(offsets, sizes)] += 1
    wrong = [
        name
        for name, regions in mine.items()
        if any(
            bool((counts[name][_slices(*region)] != math.prod(spreads[name].held.values())).any()) for region in regions
        )
    ]
    first = (math.prod(sizes) for name, regions in mine.items() if spreads[name].first for _, sizes in regions)
    return wrong, sum(first)


def _slices(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


Where = tuple[int, dict[str, int], dict[str, list[int]]]


def picture(where: list[Where]) -> Figure:
    """The mesh, drawn from the ranks' real groups: each rank at its place, and a line for each group.

    Args:
        where: Of each rank its number, its place on each axis, and the ranks of its groups along pp, dp and tp.
    """
    from matplotlib.figure import Figure

    spots = {rank: _spot(place) for rank, place, _ in where}
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.add_subplot()
    styles = {"tp": ("-", 7.0, "#CCCCCC"), "dp": ("--", 1.6, "#0072B2"), "pp": ("-", 1.6, "#D55E00")}
    for axis, (style, width, colour) in styles.items():
        label: str | None = f"{axis} group"
        for ranks in sorted({tuple(groups[axis]) for _, _, groups in where}):
            if len(ranks) > 1:
                xs, ys = zip(*(spots[rank] for rank in ranks), strict=True)
                axes.plot(xs, ys, style, linewidth=width, color=colour, label=label, zorder=1)
                label = None
    for rank, place, _ in where:
        x, y = spots[rank]
        axes.plot(x, y, "o", markersize=26, markerfacecolor="white", markeredgecolor="black", zorder=2)
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=11, zorder=3)
        named = f"pp {place['pp']} dp {place['dp']} tp {place['tp']}"
        axes.text(x - 0.06, y - 0.2, named, ha="right", va="top", fontsize=8, zorder=3)  # where no line runs
    axes.margins(0.15)
    axes.axis("off")
    if len(where) > 1:
        axes.legend(frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.08))
    return figure


def _spot(place: dict[str, int]) -> tuple[float, float]:
    """Stages from left to right, replicas from top to bottom, tensor-parallel ranks slanting side by side."""
    return 2.6 * place["pp"] + 0.9 * place["tp"], -1.3 * place["dp"] - 0.45 * place["tp"]


def demo(world: World, zero: Literal[0, 1] = 1) -> list[Claim]:
    """Arranges the ranks in every layout that they allow; the table shows groups, and which ranks hold which element.

    Args:
        zero: Stage of ZeRO in those layouts.
    """
    return claims(world, zero)
