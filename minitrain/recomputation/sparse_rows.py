"""Gist's second encoding: an activation that is mostly zeros waits for backward without them.

**Idea.** A convolution after a ReLU needs the ReLU's output in backward, for the gradient of its weight. Training
makes most of that output 0. Compressed sparse rows keep the other values, their columns, and where each row begins. The
rows are narrow, of 256 columns, so that a column's number fits a byte. Forward and backward still compute with dense
tensors.
**Source.** Jain et al. 2018, "Gist" (*sparse storage and dense compute*).
**Cost.** 5 bytes for each value that is not 0, and 4 for each row, in place of 4 for each element: less where more than
20 % are zeros. With column numbers of 4 bytes it would take 50 %. No number changes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

COLUMNS = 256


@dataclass
class Rows:
    """A tensor as compressed sparse rows."""

    values: Tensor  # [nonzero]
    columns: Tensor  # [nonzero], a byte each
    starts: Tensor  # [rows + 1]: row r has the values from starts[r] to starts[r + 1]
    shape: torch.Size

    @classmethod
    def of(cls, dense: Tensor) -> Rows:
        """The rows of a tensor of any shape, of which the last may be filled up with zeros."""
        rows = nn.functional.pad(dense.flatten(), (0, -dense.numel() % COLUMNS)).view(-1, COLUMNS)
        # Row after row, as they are read back.
        row, column = rows.nonzero(as_tuple=True)  # [nonzero] each
        counts = row.bincount(minlength=len(rows))  # [rows]
        starts = nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        return cls(rows[row, column], column.to(torch.uint8), starts, dense.shape)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.columns.nbytes + self.starts.nbytes

    def dense(self) -> Tensor:
        """The tensor again."""
        # Differences of the starts are the numbers of values.
        row = torch.arange(len(self.starts) - 1, device=self.starts.device).repeat_interleave(self.starts.diff())
        rows = self.values.new_zeros(len(self.starts) - 1, COLUMNS)
        rows[row, self.columns.long()] = self.values
        return rows.flatten()[: self.shape.numel()].view(self.shape)


class SparseRows(saved_tensors_hooks):
    """`with SparseRows(): y = conv(relu(x))`: what autograd keeps of this, it keeps as rows where that is smaller."""

    def __init__(self) -> None:
        self.last: Any = None
        super().__init__(self.encode, lambda kept: kept.dense() if isinstance(kept, Rows) else kept)

    def encode(self, x: Tensor) -> Tensor | Rows:
        """What autograd keeps in place of x."""
        # Weights are there anyway, also as views: x @ W.T keeps a view of W.
        if isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter):
            return x
        # Whole numbers, or values below 0, are no ReLU's output.
        if not x.is_floating_point() or (x < 0).any():
            return x
        # The ReLU and the convolution keep the same tensor, one after the other. It is encoded once, and held until the
        # next one comes, because then only views of it can have its address, and these look different.
        look = x.data_ptr(), x.shape, x.stride(), x.dtype, x._version
        if self.last is None or look != self.last[0]:
            rows = Rows.of(x)
            smaller = rows.nbytes < x.nbytes
            if not smaller:
                warnings.warn("an activation has too few zeros for sparse rows: it is kept as it is", stacklevel=2)
            self.last = look, rows if smaller else x, x
        return self.last[1]

    def __exit__(self, *error: Any) -> None:
        self.last = None
        super().__exit__(*error)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
