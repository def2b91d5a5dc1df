"""The pictures of the chapter on pipelines: ways through the ranks, and the loss of a GPT trained in five ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from minitrain.lessons.pictures.panels import Figure, arrow, box, panels
from minitrain.pipeline_parallel.full.drawing import KINDS, lighter

TOKENS = 4 * 32  # of a micro-batch: samples times positions
# name -> (color, line)
LOOKS = {
    "1F1B with a flush": ("#000000", "-"),
    "weight stashing": ("#0072B2", "-"),
    "no stashing": ("#D55E00", ":"),
    "vertical sync": ("#009E73", "--"),
    "PipeDream-2BW": ("#CC79A7", "-."),
}


def losses(runs: Mapping[float, Mapping[str, Sequence[Sequence[float]]]], ranks: int = 4) -> Figure:
    """One panel for each learning rate; lines are means over the seeds, and bands reach from the lowest to the highest.

    Args:
        runs: Learning rate -> name -> for each seed, the losses that `losses.train` of the lessons returned.
        ranks: On how many they ran.
    """
    figure, each = panels(9, 3.6, len(runs), sharey=True)
    for axes, (lr, of_names) in zip(each, runs.items(), strict=True):
        for name, seeds in of_names.items():
            color, line = LOOKS[name]
            values = torch.tensor(seeds)
            tokens = [(number + 1) * ranks * TOKENS / 1000 for number in range(values.shape[1])]
            axes.plot(tokens, values.mean(0), color=color, linestyle=line, lw=2.5 if line == ":" else 1.5, label=name)
            axes.fill_between(tokens, values.amin(0), values.amax(0), color=color, alpha=0.12, lw=0)
        axes.set(title=f"learning rate {lr:g}", xlabel="thousand tokens")
    each[0].set_ylabel("training loss")
    each[0].legend(frameon=False, fontsize=8)
    return figure


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
