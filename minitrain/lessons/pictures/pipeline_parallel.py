"""The picture of the chapter on pipelines: ways through the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from minitrain.lessons.pictures.panels import Figure, arrow, box, panels
from minitrain.pipeline_parallel.full.drawing import KINDS, lighter


def ways(of_schedules: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """A panel for each schedule: which stages a rank has, and by arrows a micro-batch's way forward through them.

    Args:
        of_schedules: Name -> ways through the ranks, one where all micro-batches go the same; the s-th entry of a way
            is the rank that has stage s.
    """
    figure, each = panels(8.4, 2.7, len(of_schedules))
    for axes, (name, of_schedule) in zip(each, of_schedules.items(), strict=True):
        filled: list[int] = []  # the rank of each box so far
        for way in of_schedule:
            places = []
            for stage, rank in enumerate(way):
                places.append((filled.count(rank), rank))
                filled.append(rank)
                look = lighter(KINDS["F"][1], places[-1][0], 2), ""
                box(axes, places[-1][0] - 0.3, rank - 0.27, 0.6, 0.54, look, f"stage {stage}", ec=None)
            side = -1 if places[0][0] == 0 else 1
            before = (places[0][0] + 0.75 * side, places[0][1])
            for start, to in pairwise([before, *places]):
                # From the edge of one box to that of the next, up or down where they are of one column.
                down, right = (to[1] > start[1]) - (to[1] < start[1]), (to[0] > start[0]) - (to[0] < start[0])
                begin = (start[0] + (0.3 * right if start != before else 0), start[1] + (0 if right else 0.27 * down))
                end = (to[0] - 0.3 * right, to[1] - (0 if right else 0.27 * down))
                arrow(axes, begin, end)
        axes.set(xlim=(-0.9, 1.9), ylim=(max(filled) + 0.5, -0.5), xticks=())
        axes.set_yticks(range(max(filled) + 1), [f"rank {rank}" for rank in range(max(filled) + 1)])
        axes.set_title(name, fontsize=10)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    return figure
