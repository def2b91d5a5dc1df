"""The lesson of `minitrain.checkpointing.position`: ranks come and go, and every sample is taken once per epoch.

A rank of the run plays several where there are fewer of them than the stage has.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from minitrain.checkpointing.position import Position
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.rows import Claim, Rows

SAMPLES, BATCH = 90, 7  # no number of ranks divides the batch, nor the batch the samples
STAGES = ((4, 20), (2, 31), (8, 17), (1, 22))  # (ranks, steps); 90 steps are 7 epochs


def demo(world: World) -> list[Claim]:
    """Takes samples while ranks come and go; the table shows each sample once, and one device's order."""
    rows, alone = Rows("MosaicML 2023, StreamingDataset"), Position(SAMPLES, BATCH)
    one_device, found = [alone.take(0, 1).tolist() for _ in range(90)], taken(world)
    counts = Counter(sample for step in found for sample in step)
    wrong = sum(counts[sample] != 7 for sample in {*range(SAMPLES), *counts})
    what = "samples not taken once in each epoch while ranks come and go: 4 → 2 → 8 → 1"
    rows.add(what, "0", 0, wrong, "samples", how="compared")
    pairs = (pair for steps in zip(found, one_device, strict=True) for pair in zip_longest(*steps))
    what = "samples that differ from one device's in the same step"
    rows.add(what, "0", 0, sum(a != b for a, b in pairs), "samples", how="compared")
    return rows.claims()


def taken(world: World) -> list[list[int]]:
    """The samples of each step, those of rank 0 first; between two stages only the position is kept."""
    position, mine = 0, []
    for ranks, steps in STAGES:
        played = {rank: Position(SAMPLES, BATCH) for rank in range(world.rank, ranks, world.size)}
        for each in played.values():
            each.position = position
        kept = Position(SAMPLES, BATCH)
        kept.position = position
        for _ in range(steps):
            mine.append({rank: each.take(rank, ranks).tolist() for rank, each in played.items()})
            kept.take(0, ranks)
        position = kept.position
    steps_of = zip(*gather_objects(mine), strict=True)
    return [
        [sample for _, samples in sorted(pair for part in step for pair in part.items()) for sample in samples]
        for step in steps_of
    ]
