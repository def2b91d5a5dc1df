"""The losses of single tokens in any layout: for means by source and position, and for the samples of a spike.

The module at the model's end keeps them where it is asked to (`NextTokenLoss.kept`). Each rank has those of its own
samples and, along cp, of its own tokens. Ranks without the model's end have none; tensor-parallel ranks all have the
same, and the first one's count.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.composition.step import Training
from minitrain.context_parallel.full.places import held
from minitrain.craft.loss_by_source import mean_by


class TokenLosses:
    """Losses of the tokens that have gone through the model since `begin`; every rank calls all of it."""

    def __init__(self, training: Training):
        self.training, self.module = training, training.part.loss

    def begin(self) -> None:
        """Forget what was kept, and keep what comes."""
        self.module.kept = []  # type: ignore[bad-argument-type]

    def by_label(self, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The mean loss of the samples with each label over all ranks, and how many tokens they have: [count] each.

        `labels` are those of this rank's samples, [samples], each 0 to count − 1.
        """
        rows = self._rows()
        # Ranks whose losses don't count have no rows, and need no labels.
        return mean_by(rows, labels.to(rows.device)[: len(rows), None], count)

    def by_position(self, labels: Tensor, count: int) -> Tensor:
        """The mean loss at each position of the samples with each label over all ranks, [count, seq]."""
        layout, seq, rows = self.training.settings.layout, self.training.settings.model.sizes.positions, self._rows()
        places = torch.arange(seq)
        if layout.cp > 1:
            places = held(layout.cp_mode, seq, self.training.axes.place["cp"], layout.cp)
        both = labels.to(rows.device)[: len(rows), None] * seq + places.to(rows.device)
        return mean_by(rows, both, count * seq)[0].view(count, seq)

    def by_sample(self, first: int, count: int) -> Tensor:
        """The mean loss of each of a step's `count` samples, of which `first` is this rank's first; on all ranks."""
        rows = self._rows()
        means = torch.zeros(count, dtype=torch.float64, device=rows.device)
        # Each rank along cp brings the mean of its own tokens, of which all have equally many.
        means[first : first + len(rows)] = rows.double().mean(1) / self.training.settings.layout.cp
        dist.all_reduce(means)  # to each rank's own the others add 0, but along cp their tokens
        return means

    def _rows(self) -> Tensor:
        """Those of this rank that count, [samples, seq/cp]."""
        kept, settings = self.module.kept, self.training.settings
        # Tensor-parallel ranks have the same losses, which must count once.
        if kept and not self.training.axes.place["tp"]:
            return torch.cat(kept)  # type: ignore[bad-argument-type]
        return torch.zeros(0, settings.model.sizes.positions // settings.layout.cp, device=self.training.device)
