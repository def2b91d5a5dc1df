"""Several sources in given shares: which source gives sample number i, and which of its samples, follows from i.

**Idea.** Samples are taken in blocks of 1,000. In each block a source of share 0.3 gives exactly 300 samples, at places
that a random order of the block chooses. So sample i lies in block i // 1000, at a place whose number in that order says
which source it is and how many of the source's samples came before it. Nothing has to be kept: the position in the run
gives a cursor for each source, on any number of ranks, and each source gives its samples 0, 1, 2, … once each.

**Source.** Brown et al. 2020, table 2.2, for shares that differ from sizes.
Also called blending, data mixing, domain weights.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch

from minitrain.data.order import key_of, shuffled
from minitrain.data.text import Batch

BLOCK = 1000
"""Samples in which every source has exactly its share."""


@runtime_checkable
class Numbered(Protocol):
    """Samples that are taken by their numbers, as `minitrain.data.text.Samples` are."""

    seq: int

    def take(self, samples: Iterable[int]) -> Batch: ...


@dataclass(frozen=True)
class Share:
    """A source in a mixture: what the command line writes as code=0.3:path.

    Attributes:
        name: For reports.
        weight: Part of the samples, with three decimals at most.
        data: As `--data` takes it.
    """

    name: str
    weight: float
    data: str


def parse(mix: Sequence[str]) -> list[Share]:
    """The shares that a command line names.

    Args:
        mix: Each as name=weight:data.

    Raises:
        ValueError: If one cannot be read, two have the same name, or their weights do not sum to 1.
    """
    shares = []
    for text in mix:
        name, equals, rest = text.partition("=")
        number, colon, data = rest.partition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not (name and equals and colon and data and 0 < weight <= 1):
            raise ValueError(f"mix={text!r} is no name=weight:data with a weight in (0, 1], such as code=0.3:src")
        if abs(weight * BLOCK - round(weight * BLOCK)) > 1e-9:
            raise ValueError(f"mix={text!r} has a weight of more than three decimals; round it")
        shares.append(Share(name, weight, data))
    names = [share.name for share in shares]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"mix names {min(twice)!r} twice; give each source a name of its own")
    if sum(round(share.weight * BLOCK) for share in shares) != BLOCK:
        total = sum(share.weight for share in shares)
        raise ValueError(f"mix has weights that sum to {total:.4g}, not 1; change {', '.join(names)}")
    return shares


class Mixture:
    """Samples of several sources, each in its share.

    Args:
        sources: Samples of each, all of one length.
        weights: Their shares, in thousandths at the finest; they sum to 1.
        seed: Of the places that a source's samples have in a block.
    """

    def __init__(self, sources: Sequence[Numbered], weights: Sequence[float], seed: int = 0):
        self.sources, self.seq, self.seed = list(sources), sources[0].seq, seed
        self.counts = [round(weight * BLOCK) for weight in weights]  # samples of each in a block
        self._ends = list(accumulate(self.counts))
        if self._ends[-1] != BLOCK or min(self.counts) < 1:
            raise ValueError(f"weights={list(weights)} must be thousandths above 0 that sum to 1")

    def place(self, sample: int) -> tuple[int, int]:
        """Which source gives sample number `sample`, and its number there."""
        block, place = divmod(sample, BLOCK)
        drawn = shuffled(place, BLOCK, key_of(self.seed, "mixture", block))
        source = bisect_right(self._ends, drawn)
        before = self._ends[source] - self.counts[source]
        return source, block * self.counts[source] + drawn - before

    def cursors(self, position: int) -> list[int]:
        """How many samples each source has given once the first `position` samples are taken."""
        block, rest = divmod(position, BLOCK)
        cursors = [block * count for count in self.counts]
        for sample in range(block * BLOCK, block * BLOCK + rest):
            cursors[self.place(sample)[0]] += 1
        return cursors

    def take(self, samples: Iterable[int]) -> Batch:
        """The samples of these numbers, in their order.

        Returns:
            Inputs and targets, each [samples, seq].
        """
        drawn = [self.sources[source].take([number]) for source, number in map(self.place, samples)]
        if not drawn:
            return self.sources[0].take([])
        inputs, targets = zip(*drawn, strict=True)
        return torch.cat(inputs), torch.cat(targets)
