"""The lesson of `minitrain.checkpointing.position`: ranks come and go, and every sample is taken once per epoch.

A rank of the run plays several where there are fewer of them than the stage has. A sampler for each rank, as
`DistributedSampler` is one, is here as the way that goes wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from minitrain.checkpointing.position import Position
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.costs import checkpointing as costs
from minitrain.lessons.claims import Claim, fold

ELASTIC = "MosaicML 2023, StreamingDataset"
SAMPLES, BATCH = 90, 7  # no number of ranks divides the batch, nor the batch the samples
STAGES = {  # (ranks, steps); 90 steps are 7 epochs
    "4 → 2 → 3 → 4": ((4, 20), (2, 31), (3, 17), (4, 22)),
    "8 → 6 → 8": ((8, 29), (6, 40), (8, 21)),
    "1 → 5 → 2": ((1, 3), (5, 70), (2, 17)),
}


class PerRank:
    """The other way: rank r of n takes every n-th sample from the r-th, and keeps how many it has taken."""

    def __init__(self, taken: int):
        self.taken = taken

    def take(self, rank: int, ranks: int) -> int:
        number = rank + ranks * self.taken
        self.taken += 1
        return number


def taken(world: World, stages: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The samples of each step, those of rank 0 first; between two stages only the position is kept."""
    position, mine = 0, []
    for ranks, steps in stages:
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


def by_each_rank(stages: Sequence[tuple[int, int]]) -> costs.Wrong:
    """Samples that samplers for each rank repeat and lose, counted."""
    counts: Counter[int] = Counter()
    taken_before = 0
    for ranks, steps in stages:
        samplers = [PerRank(taken_before) for _ in range(ranks)]
        for _ in range(steps):
            counts.update(sampler.take(rank, ranks) for rank, sampler in enumerate(samplers))
        taken_before = samplers[0].taken
    repeated = sum(count - 1 for count in counts.values())
    return costs.Wrong(repeated, sum(number not in counts for number in range(max(counts))))


def demo(world: World, shorter: int = 10) -> list[Claim]:
    """Takes samples while ranks come and go; the table shows each sample once, and what a sampler per rank does.

    Args:
        shorter: By how much fewer steps a sampler per rank takes in each stage.
    """
    once, same, shares = {}, {}, {}
    alone = Position(SAMPLES, BATCH)
    one_device = [alone.take(0, 1).tolist() for _ in range(90)]
    for name, stages in STAGES.items():
        found = taken(world, stages)
        counts = Counter(sample for step in found for sample in step)
        epochs = BATCH * len(found) // SAMPLES
        wrong = sum(counts[sample] != epochs for sample in range(SAMPLES)) + sum(s >= SAMPLES for s in counts)
        once[name] = Claim("", "0", 0, wrong, "samples", ELASTIC, "compared")
        pairs = zip(found, one_device, strict=True)
        differ = sum(a != b for step, right in pairs for a, b in zip(step, right, strict=False)) + sum(
            len(step) != BATCH for step in found
        )
        same[name] = Claim("", "0", 0, differ, "samples", ELASTIC, "compared")
    most = least = 0
    for ranks in range(1, 9):
        sizes = [len(Position(SAMPLES, BATCH).take(rank, ranks)) for rank in range(ranks)]
        most, least = max(sizes), min(sizes)
        shares[f"{ranks} ranks"] = Claim("", "1", 1, most - least, "samples", "derived", "compared", "<=")
    in_epochs = [sample for step in one_device for sample in step]
    epochs = [tuple(in_epochs[start : start + SAMPLES]) for start in range(0, len(in_epochs), SAMPLES)]
    repeated, lost = {}, {}
    short = tuple((ranks, steps - shorter) for ranks, steps in STAGES["8 → 6 → 8"])
    for name, stages in {**dict(list(STAGES.items())[:2]), "8 → 6 → 8, shorter": short}.items():
        theory, practice = costs.per_rank_sampler(stages), by_each_rank(stages)
        fewer, more = "Σ (n' − n)·c where ranks leave", "Σ (n − n')·c where ranks come"
        repeated[name] = Claim("", fewer, theory.repeated, practice.repeated, "samples", "derived", "compared")
        lost[name] = Claim("", more, theory.lost, practice.lost, "samples", "derived", "compared")
    what = "samples not taken once in each epoch while ranks come and go: 4 → 2 → 3 → 4, 8 → 6 → 8, 1 → 5 → 2"
    return [
        fold(what, once, key=True),
        fold("samples that differ from one device's in the same step", same, key=True),
        fold("by how many samples the ranks' shares differ, 1 to 8 ranks", shares),
        Claim("different orders in 7 epochs", "7", 7, len(set(epochs)), "orders", "derived", "compared"),
        fold("a sampler per rank: samples repeated", repeated, key=True),
        fold("a sampler per rank: samples lost", lost, key=True),
    ]
