"""The picture of the chapter on pipelines: the loss of a small GPT that is trained in five ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from minitrain.lessons.pictures.panels import Figure, panels

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
        axes.set_title(f"learning rate {lr:g}")
        axes.set_xlabel("thousand tokens")
    each[0].set_ylabel("training loss")
    each[0].legend(frameon=False, fontsize=8)
    return figure
