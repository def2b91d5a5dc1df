"""The lesson of `minitrain.craft.loss_by_source`: means over all ranks as on one device.

A sum of N numbers in any order is off by at most γ = Nu/(1 − Nu) of the sum of their absolute values, with u = 2⁻⁵³ in
float64 (Higham 2002, §4.2). Losses are above 0, so two orders give means that differ by at most 2γ of the mean, and a
division adds one rounding to each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.craft.loss_by_source import mean_by
from minitrain.data.text import Samples, Text
from minitrain.lessons.craft import common
from minitrain.lessons.rows import Claim, Rows

SOURCES = ("prose", "code")


def demo(world: World) -> list[Claim]:
    """Trains a small GPT on prose, and measures its loss on prose and code."""
    rows, training, steps = Rows(), common.Training(world), 60
    with world.timed(f"{steps} steps"):
        for number in range(steps):
            training.step(number)
    texts = [Samples(Text.load(name).training, common.SEQ) for name in ("reference", "library")]
    found = []
    for draw in range(8):  # of other samples: twice two sums may round alike by chance
        every = [of_rank(training, texts, rank, draw) for rank in range(world.size)]
        losses, sources = every[world.rank]
        with Ledger() as ledger:
            means, _ = mean_by(losses, sources[:, None], len(SOURCES))
        all_losses, all_sources = (torch.cat(each) for each in zip(*every, strict=True))
        found.append((means, torch.stack([all_losses[all_sources == n].mean() for n in range(len(SOURCES))])))
    means, right = (torch.stack(each) for each in zip(*found, strict=True))
    # Rounded up, since the last digits of a training depend on the processor.
    bound = 2 * (all_losses.numel() + 1) * 2.0**-53 * math.ceil(right.max())
    what = "mean loss of each source: largest difference from one device with all samples"
    rows.near(what, means, right, bound, "2γ · ⌈Σ losses / N⌉", "Higham 2002, §4.2")
    rows.add("bytes into the all-reduce", "2 · 8 · sources", 16 * len(SOURCES), ledger.payload("all_reduce"))
    return rows.claims()


def of_rank(training: common.Training, texts: list[Samples], rank: int, draw: int) -> tuple[Tensor, Tensor]:
    """Losses of tokens, and the source of each sample, as a rank has them: shares differ between ranks."""
    sources = (torch.arange(16 + rank) % (2 + rank) == 0).long()
    batches = [texts[code].take([1000 * rank + 100 * draw + number]) for number, code in enumerate(sources.tolist())]
    inputs, targets = (torch.cat(each).to(training.world.device) for each in zip(*batches, strict=True))
    return common.token_losses(training.model, (inputs, targets)), sources.to(training.world.device)
