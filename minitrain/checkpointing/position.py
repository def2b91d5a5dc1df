"""The position in the data: one number for all ranks, so that a training goes on with any number of ranks.

**Idea.** Samples have numbers, and a step takes the next `batch` numbers, whoever is there to share them. How many have
been taken is all that a checkpoint has to keep. A sampler per rank keeps how many samples this rank has taken, which
means another place in the data for each number of ranks: after 8 → 6 → 8 ranks it has repeated some, and lost others.

**Source.** MosaicML 2023, "StreamingDataset", elastic determinism; PyTorch's `DistributedSampler` is one for each rank.
**Sent.** Nothing.
**Cost.** One number in a checkpoint; and an epoch's order, 8 bytes per sample, in each rank's memory.
The full form is the trainer's `position`, with `minitrain.data.text.Samples`.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Position:
    """`take(rank, ranks)` gives the samples of a rank in the next step.

    Args:
        samples: How many there are; each epoch has all of them in an order of its own.
        batch: How many a step takes on all ranks together, whatever their number.
        seed: Of the orders.
    """

    def __init__(self, samples: int, batch: int, seed: int = 0):
        assert samples >= 1 and batch >= 1, f"invalid: {samples=}, {batch=}"
        self.samples, self.batch, self.seed = samples, batch, seed
        self.position = 0  # samples taken so far by all ranks: save this, and set it after a load
        self.epoch, self.order = -1, torch.empty(0)

    def take(self, rank: int, ranks: int) -> Tensor:
        """The indices of this rank's samples; every rank calls it in every step."""
        assert 0 <= rank < ranks, f"{rank=} is none of {ranks} ranks"
        numbers = range(self.position, self.position + self.batch)
        # All ranks count the whole batch, not their own share of it.
        self.position += self.batch
        # Some get one more where the batch does not divide.
        start, stop = (part * self.batch // ranks for part in (rank, rank + 1))
        return torch.tensor([self.sample(number) for number in numbers[start:stop]], dtype=torch.int64)

    def sample(self, number: int) -> int:
        """The index of the sample with a number, by which epoch and place are determined, and not by the past."""
        epoch, place = divmod(number, self.samples)
        if epoch != self.epoch:
            # A step may end one epoch and begin the next.
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self.epoch, self.order = epoch, torch.randperm(self.samples, generator=generator)
        return int(self.order[place])


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
