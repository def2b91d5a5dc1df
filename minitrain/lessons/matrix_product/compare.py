"""One split product compared with the same on one device: the claims of by_data, by_columns and by_rows.

Every rank makes the whole X, W and ∂Y from one seed, so that it can work out by itself what one device would get. Whole
numbers make all sums exact, and the two must agree bit by bit. Other numbers are rounded, in an order of additions that
the split changes: a sum of k products, in whatever order, is off by at most γ_k = ku/(1 − ku) times the sum of their
absolute values, where u = 2⁻²⁴ for float32 (Higham 2002, "Accuracy and stability of numerical algorithms", §3.1). Two
orders differ by at most twice that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from minitrain.comm.ledger import Ledger
from minitrain.comm.memory import storage_bytes
from minitrain.comm.world import World
from minitrain.costs.matrix_product import SplitCost
from minitrain.lessons.claims import Claim, fold

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGHAM = "Higham 2002, §3.1"


class Split(NamedTuple):
    """One way to split Y = XW: the functions that by_data, by_columns and by_rows have in common."""

    hold: Callable[..., tuple[Tensor, Tensor, Tensor]]
    forward: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor, Tensor]]
    cost: Callable[..., SplitCost]


def compare(world: World, split: Split, rows: int, inner: int, columns: int) -> list[Claim]:
    """Run a split product forward and backward, and claim what it holds, sends, and computes.

    Each claim is also tried at sizes and with a dtype of which no two are equal: at these many a wrong formula fails.

    Raises:
        ValueError: A size is below 1.
    """
    for name, size in (("rows", rows), ("inner", inner), ("columns", columns)):
        if size < 1:
            raise ValueError(f"{name}={size} leaves nothing to multiply; use at least 1")
    world.figure(lambda: draw(rows, inner, columns, world.size))
    source = (split.cost.__doc__ or "").partition("Source: ")[2].strip().rstrip(".")
    held, forward, backward, errors, rounding = ({} for _ in range(5))
    formulas = FORMULAS[split.cost.__name__]
    for sizes, dtype in (((rows, inner, columns), torch.float32), ((11, 7, 13), torch.float64)):
        case = "{} × {} by {} columns in {}".format(*sizes, dtype)
        item = {} if dtype == torch.float32 else {"item": dtype.itemsize}  # theory assumes float32 by default
        cost = split.cost(*sizes, world.size, world.rank, **item)
        run = product(world, split, [matrix.to(dtype) for matrix in whole_numbers(*sizes, world.device)])
        held[case] = Claim("", formulas[0], cost.held, run.held, "B", source)
        # Of the two ways one sends nothing; the messages are those of the other.
        for way, formula, predicted, ledger in (
            (forward, formulas[1], cost.forward, run.forward),
            (backward, formulas[2], cost.backward, run.backward),
        ):
            messages = cost.messages if predicted else 0
            way[case] = Claim("", formula, predicted, ledger.sent, "B", source)
            way[f"{case}: messages"] = Claim("", formula, messages, ledger.messages, "messages", source)
        worst = max(difference.max().item() for difference, _ in run.differences if difference.numel())
        errors[case] = Claim("", "0", 0, worst, source=source, how="compared")
        sevenths = [matrix / 7 for matrix in whole_numbers(*sizes, world.device)]  # these have no exact binary form
        pairs = product(world, split, sevenths).differences
        share = max((difference / bound.clamp_min(1e-30)).max().item() for difference, bound in pairs if bound.numel())
        rounding[case] = Claim("", "|error| ≤ 2γ_k Σ|xw|", 1, share, "1", HIGHAM, "compared", "<=")
    return [
        fold("bytes held of X and W", held, key=True),
        fold("bytes sent forward, and messages", forward, key=True),
        fold("bytes sent backward, and messages", backward, key=True),
        fold("largest error of Y, ∂X, ∂W, whole numbers", errors, key=True),
        fold("largest error / bound, sevenths", rounding),
    ]


class Run(NamedTuple):
    """The measurements of one product.

    Attributes:
        held: Bytes of this rank's parts of X and W.
        forward: What it sent forward.
        backward: What it sent backward.
        differences: See `differences`.
    """

    held: int
    forward: Ledger
    backward: Ledger
    differences: list[tuple[Tensor, Tensor]]


def product(world: World, split: Split, whole: Sequence[Tensor]) -> Run:
    """Run the split product of X, W and ∂Y, which every rank has whole."""
    x, w, grad_y = whole
    my_x, my_w, my_grad_y = split.hold(x, w, grad_y, world.rank, world.size)
    held = storage_bytes([my_x, my_w])
    with Ledger() as forward:
        y = split.forward(my_x, my_w)
    with Ledger() as backward:
        grad_x, grad_w = split.backward(my_grad_y, my_x, my_w)
    return Run(held, forward, backward, differences(world, split, (x, w, grad_y), (y, grad_x, grad_w)))


# Bytes held, sent forward and sent backward, as the text writes them; M, K, N are rows, inner, columns.
FORMULAS = {
    "by_data": ("4·(M_r·K + K·N)", "0", "(n−1)·4·K·N in n−1 messages"),
    "by_columns": ("4·(M·K + K·N_r)", "0", "(n−1)·4·M·K in n−1 messages"),
    "by_rows": ("4·(M·K_r + K_r·N)", "(n−1)·4·M·N in n−1 messages", "0"),
}


def whole_numbers(
    rows: int, inner: int, columns: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """X, W and ∂Y of small whole numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    x, w, grad_y = (torch.randint(-4, 5, shape, generator=generator).float().to(device) for shape in shapes)
    return x, w, grad_y


def differences(
    world: World, split: Split, whole: tuple[Tensor, Tensor, Tensor], mine: tuple[Tensor, Tensor, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """For Y, ∂X and ∂W of this rank: how far each element is from one device's, and how far it may be."""
    x, w, grad_y = whole
    single = (x @ w, grad_y @ w.T, x.T @ grad_y)
    absolute = (x.abs() @ w.abs(), grad_y.abs() @ w.T.abs(), x.T.abs() @ grad_y.abs())
    lengths = (x.shape[1], w.shape[1], x.shape[0])  # what is summed over: inner, columns, rows
    bounds = [2 * gamma(length) * sums for length, sums in zip(lengths, absolute, strict=True)]
    # `hold` cuts X, W and Y, and the gradients are split as their tensors are.
    y, grad_x, grad_w = mine
    expected_x, expected_w, expected_y = split.hold(single[1], single[2], single[0], world.rank, world.size)
    bound_x, bound_w, bound_y = split.hold(bounds[1], bounds[2], bounds[0], world.rank, world.size)
    return [
        ((y - expected_y).abs(), bound_y),
        ((grad_x - expected_x).abs(), bound_x),
        ((grad_w - expected_w).abs(), bound_w),
    ]


def gamma(length: int) -> float:
    """How far a float32 sum of `length` products can be off, relative to the sum of their absolute values."""
    unit = 2.0**-24
    return length * unit / (1 - length * unit)


# The dims that are cut between ranks: of X, of W and of Y; None where each rank has the whole.
CUTS: dict[str, tuple[int | None, int | None, int | None]] = {
    "by data": (0, None, 0),
    "by columns of W": (None, 1, 1),
    "by rows of W": (1, 0, None),
}
# Of ranks; the fifth looks like the first.
LOOKS = (("#56B4E9", ""), ("#E69F00", "///"), ("#009E73", "..."), ("#CC79A7", "\\\\\\"))
LENGTH = 8.0  # of the longest side, as it is drawn


def draw(rows: int = 4, inner: int = 5, columns: int = 8, ranks: int = 2) -> Figure:
    """The three splits between some ranks, one below the other, to scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.4), layout="constrained")
    unit = LENGTH / max(rows, inner, columns)
    every, total = ("both ranks", "rank 0 + rank 1") if ranks == 2 else ("every rank", "sum over ranks")
    for number, (name, (x_cut, w_cut, y_cut)) in enumerate(CUTS.items()):
        axes = figure.add_subplot(3, 1, number + 1)
        left = 0.0
        for label, shape, cut in (
            ("X", (rows, inner), x_cut),
            ("W", (inner, columns), w_cut),
            ("Y", (rows, columns), y_cut),
        ):
            summed = name == "by rows of W" and label == "Y"
            _matrix(axes, left, label, shape, unit, cut, ranks, total if summed else every)
            left += shape[1] * unit + 1.6
            sign = {"X": "·", "W": "=", "Y": ""}[label]
            axes.text(left - 0.8, 0, sign, ha="center", va="center", fontsize=16)
        half = max(rows, inner) * unit / 2
        axes.set(xlim=(-0.2, left - 1.4), ylim=(-half - 0.3, half + 0.9), aspect="equal")
        axes.set_title(name, loc="left", fontsize=11)
        axes.axis("off")
    return figure


def _matrix(
    axes: Axes, left: float, label: str, shape: tuple[int, int], unit: float, cut: int | None, ranks: int, whole: str
) -> None:
    """One matrix, drawn as one block or cut along a dim, each part with the rank that holds it."""
    from matplotlib.patches import Rectangle

    height, width = shape[0] * unit, shape[1] * unit
    blocks = [(left, height / 2, height, width, whole, "#DDDDDD", "")]
    if cut is not None:
        blocks = []
        edge = 0.0
        for rank, part in enumerate(torch.arange(shape[cut]).tensor_split(ranks)):
            size = len(part) * unit
            name = f"rank {rank}" if ranks <= (2 if cut else 4) else str(rank)
            tall, wide, x, top = (
                (height, size, left + edge, height / 2) if cut else (size, width, left, height / 2 - edge)
            )
            if len(part):
                blocks.append((x, top, tall, wide, name, *LOOKS[rank % len(LOOKS)]))
            edge += size
    for x, top, tall, wide, text, colour, hatch in blocks:
        axes.add_patch(Rectangle((x, top - tall), wide, tall, facecolor=colour, hatch=hatch, edgecolor="white", lw=2))
        box = {"fc": "white", "ec": "none", "pad": 1.2}
        small = 9 if min(tall, wide) > 0.9 else 6
        axes.text(x + wide / 2, top - tall / 2, text, ha="center", va="center", fontsize=small, bbox=box)
    title = f"{label}  {shape[0]}×{shape[1]}"
    axes.text(left + width / 2, height / 2 + 0.2, title, ha="center", va="bottom", fontsize=10)
