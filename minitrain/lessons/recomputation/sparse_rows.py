"""The lesson of `minitrain.recomputation.sparse_rows`: bytes kept, and that no number changes."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.recomputation import cnn
from minitrain.lessons.rows import Claim
from minitrain.lessons.rows import Rows as Claims
from minitrain.recomputation.sparse_rows import COLUMNS, Rows, SparseRows


class Count(SparseRows):
    """Collects what autograd keeps: each encoded tensor, and each storage that is kept as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Tensor | Rows] = {}

    def encode(self, x: Tensor) -> Tensor | Rows:
        kept = super().encode(x)
        if not isinstance(x if x._base is None else x._base, nn.Parameter):
            self.kept[id(kept) if isinstance(kept, Rows) else kept.untyped_storage().data_ptr()] = kept
        return kept


def demo(world: World) -> list[Claim]:
    """Keeps outputs of ReLUs as sparse rows; the table shows bytes, and gradients that differ."""
    rows, layer = Claims("Jain et al. 2018, §4.1"), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 5, 3)).to(world.device)
    warnings.filterwarnings("ignore", "an activation has too few zeros")
    for share in (0.5, 0.1, 1.0):  # the first one is shown
        x, counter = with_zeros(world, share), Count()
        right = cnn.gradients(layer, x, *layer.parameters())
        with counter:
            found = cnn.gradients(layer, x, *layer.parameters())
        predicted = min(costs.sparse_bytes(-(-x.numel() // COLUMNS), int((x > 0).sum())), 4 * x.numel())
        what, formula = "bytes that a ReLU and a convolution keep, 10 to 100 % zeros", "min(5Z + 4(R+1), 4N)"
        kept = sum(each.nbytes for each in counter.kept.values())
        rows.add(what, formula, predicted, kept, case=f"{share:.0%} zeros")
        what = "elements of gradients that differ from torch's"
        rows.equal(what, found, right, "∇ = ∇ of torch's", case=f"{share:.0%} zeros")
    return rows.claims()


def with_zeros(world: World, share: float) -> Tensor:
    """An input of a ReLU of which this share of elements is negative, in an order of this rank's own.

    It has 3,520 elements: 13 rows and three quarters.
    """
    shape, size = (2, 4, 20, 22), 3520
    order = torch.randperm(size, generator=torch.Generator().manual_seed(world.rank)) + 1.0
    return torch.where(order <= round(share * size), -order, order).view(shape).to(world.device)
