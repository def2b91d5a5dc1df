"""Several sources in given shares: which source gives sample number i, and which of its samples, follows from i.

**Idea.** Samples are taken in blocks of 1,000. In each block a source of share 0.3 gives exactly 300 samples, at places
that a random order of the block chooses, and each source gives its samples 0, 1, 2, … in their order. So the position
in the run says how many each source has given, and these cursors are all state there is, on any number of ranks.

**Source.** Brown et al. 2020, table 2.2, for shares that differ from sizes.
Also called blending, data mixing, domain weights.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from minitrain.data.order import key_of, shuffled
from minitrain.data.shares import BLOCK
from minitrain.data.text import Batch, Numbered


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
        self._block, self._places = -1, list[tuple[int, int]]()  # of the block that was asked for last
        if self._ends[-1] != BLOCK or min(self.counts) < 1:
            raise ValueError(f"weights={list(weights)} must be thousandths above 0 that sum to 1")

    def place(self, sample: int) -> tuple[int, int]:
        """Which source gives sample number `sample`, and its number there."""
        block, place = divmod(sample, BLOCK)
        if block != self._block:
            order = (shuffled(number, BLOCK, key_of(self.seed, "mixture", block)) for number in range(BLOCK))
            cursors = [block * count for count in self.counts]
            self._block, self._places = block, []
            for drawn in order:
                source = bisect_right(self._ends, drawn)
                self._places.append((source, cursors[source]))
                cursors[source] += 1
        return self._places[place]

    def cursors(self, position: int) -> list[int]:
        """How many samples each source has given once the first `position` samples are taken."""
        block, rest = divmod(position, BLOCK)
        given = Counter(self.place(sample)[0] for sample in range(block * BLOCK, block * BLOCK + rest))
        return [block * count + given[source] for source, count in enumerate(self.counts)]

    def take(self, samples: Iterable[int]) -> Batch:
        """Inputs and targets of the samples of these numbers, each [samples, seq], in their order."""
        drawn = [self.sources[source].take([number]) for source, number in map(self.place, samples)]
        if not drawn:
            return self.sources[0].take([])
        inputs, targets = zip(*drawn, strict=True)
        return torch.cat(inputs), torch.cat(targets)
