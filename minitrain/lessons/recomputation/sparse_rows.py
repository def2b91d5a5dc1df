"""The lesson of `minitrain.recomputation.sparse_rows`: bytes kept, when it pays, and that no number changes."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import cnn
from minitrain.recomputation.sparse_rows import COLUMNS, Rows, SparseRows

PAPER = "Jain et al. 2018"
SHAPE = (2, 4, 20, 22)  # 3,520 elements: 13 rows and three quarters


class Count(SparseRows):
    """Counts what autograd keeps.

    Attributes:
        bytes: Of each encoded tensor, and of each storage that is kept as it is; parameters apart.
        rows: How many tensors were encoded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Tensor | Rows] = {}

    def encode(self, x: Tensor) -> Tensor | Rows:
        kept = super().encode(x)
        if not isinstance(x if x._base is None else x._base, nn.Parameter):
            self._kept[id(kept) if isinstance(kept, Rows) else kept.untyped_storage().data_ptr()] = kept
        return kept

    @property
    def bytes(self) -> int:
        return sum(each.nbytes for each in self._kept.values())

    @property
    def rows(self) -> int:
        return sum(isinstance(each, Rows) for each in self._kept.values())


def with_zeros(world: World, share: float, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """An input of a ReLU of which this share of elements is negative, in an order of this rank's own."""
    size = torch.Size(shape).numel()
    order = torch.randperm(size, generator=torch.Generator().manual_seed(world.rank)) + 1.0
    return torch.where(order <= round(share * size), -order, order).view(shape).to(world.device)


def pays_from(size: int) -> float:
    """The smallest share of zeros, in elements, with which the rows are smaller than the tensor; by trying."""
    low, high = 0, size
    while low < high:
        zeros = (low + high) // 2
        dense = torch.ones(size)
        dense[:zeros] = 0
        low, high = (low, zeros) if Rows.of(dense).nbytes < dense.nbytes else (zeros + 1, high)
    return low / size


def demo(world: World) -> list[Claim]:
    """Keeps outputs of ReLUs as sparse rows; the table shows bytes, the break-even, and gradients that differ."""
    conv = nn.Conv2d(SHAPE[1], 5, 3).to(world.device)

    def call(x: Tensor) -> Tensor:
        return conv(F.relu(x))

    kept, same, once = {}, {}, {}
    for share in (0.5, 0.1, 0.9, 1.0):  # the first one is shown
        x = with_zeros(world, share)
        size, nonzero = x.numel(), int((x > 0).sum())
        counter = Count()

        def sparse(x: Tensor, counter: Count = counter) -> Tensor:
            with counter:
                return call(x)

        right = cnn.gradients(call, x, *conv.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that too few are zeros
            found = cnn.different(cnn.gradients(sparse, x, *conv.parameters()), right)
        case = f"{share:.0%} zeros"
        rows, dense = costs.sparse_bytes(-(-size // COLUMNS), nonzero), 4 * size
        claim = Claim("", "min(5Z + 4(R+1), 4N)", min(rows, dense), counter.bytes, "B", f"{PAPER}, §4.1")
        kept[case] = claim
        same[case] = Claim("", "∇ = ∇ of torch's", 0, found, "elements", "derived", "compared")
        once[case] = Claim("", "1", int(rows < dense), counter.rows, "1", "derived")
    size = 1 << 14
    with world.timed("forward and backward of a ReLU and a convolution, in sparse rows"), SparseRows():
        cnn.gradients(call, with_zeros(world, 0.9))
    return [
        fold("bytes that a ReLU and a convolution keep, 10 to 100 % zeros", kept, key=True),
        Claim(
            "share of zeros from which rows are smaller, numbers of columns in a byte",
            "(1 + 4/256)/5",
            costs.break_even(1) + 4 / COLUMNS / 5,
            pays_from(size),
            "1",
            f"{PAPER}, §4.1",
            absolute=3 / size,  # whole elements, and the first of the starts
            key=True,
        ),
        fold("tensors that are encoded, of the two alike that ReLU and convolution keep; none if that is larger", once),
        fold("elements of gradients that differ from torch's", same, key=True),
    ]
