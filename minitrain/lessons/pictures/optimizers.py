"""The pictures of the chapter of optimizers: bytes of states, matrices and their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.comm.pictures import BYTES
from minitrain.lessons.pictures.panels import Axes, Figure, panels

if TYPE_CHECKING:
    from matplotlib.image import AxesImage
    from torch import Tensor

STATES, HATCH = BYTES["optimizer states"]


def states(measured: dict[str, float]) -> Figure:
    """Bytes of states per parameter, one bar for each optimizer."""
    figure, (axes,) = panels(6, 2.6)
    bars = axes.barh(list(measured), list(measured.values()), color=STATES, hatch=HATCH, edgecolor="white")
    axes.bar_label(bars, [f"{each:.2f}" for each in measured.values()], padding=3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 9), xlabel="bytes of optimizer states per parameter of a small GPT, measured")
    return figure


def factored(square: Tensor) -> Figure:
    """The squares of a gradient, and the product of their row and column sums, which are drawn at its edges."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    rows, columns = square.sum(1), square.sum(0)
    product = rows[:, None] * columns / rows.sum()
    middle = product.median().item()
    colors = LinearSegmentedColormap.from_list("states", ["white", STATES, "black"])
    scale = LogNorm(middle / 50, middle * 50, clip=True)

    def draw(axes: Axes, values: Tensor) -> AxesImage:
        axes.set(xticks=[], yticks=[])
        # An image of as many pixels as numbers: resampled, it would be a hundred times as large.
        return axes.imshow(values, cmap=colors, norm=scale, aspect="auto", interpolation="none")

    figure, (left, right, bar) = panels(7, 3.2, 3, width_ratios=[1, 1.08, 0.05])
    shown = draw(left, square)
    draw(right, product)
    # The sums themselves, as means, so that they have the same scale.
    draw(right.inset_axes((0, 1.01, 1, 0.05)), columns[None] / len(rows))
    draw(right.inset_axes((1.02, 0, 0.06, 1)), rows[:, None] / len(columns))
    left.set_title(f"squares: {square.numel():,} numbers", fontsize=10)
    right.set_title(f"R Cᵀ / ΣR, of {len(rows)} + {len(columns)} numbers", fontsize=10, pad=16)
    for axes in (left, right):
        axes.set(xlabel="column", ylabel="row")
    figure.colorbar(shown, cax=bar, label="squared gradient")
    return figure


def geometry(gradient: Tensor) -> Figure:
    """Where the steps of SGD, of Adam without memory and of Muon move the outputs of all inputs of length 1."""
    import torch

    u, _, v = torch.linalg.svd(gradient)
    steps = {"SGD: along G": gradient, "Adam: the sign of G": gradient.sign(), "Muon: U Vᵀ": u @ v}
    angles = torch.linspace(0, 2 * torch.pi, 200)
    circle = torch.stack([angles.cos(), angles.sin()])  # (2, angles), a column for each input
    figure, all_axes = panels(8, 3.3, 3, sharex=True, sharey=True)
    for axes, (name, step) in zip(all_axes, steps.items(), strict=True):
        ellipse = 2**0.5 * step / step.norm() @ circle
        axes.plot(*circle, "--", color="#999999", lw=1)
        axes.fill(*ellipse, facecolor="#EEEEEE", edgecolor="black", lw=2)
        for input_ in (0, 25, 50, 75):  # a few inputs, so that one sees who goes where
            x, y = ellipse[:, input_].tolist()
            axes.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "->", "color": "#555555"})
        axes.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xlabel="output 1")
        axes.set_title(name, fontsize=10)
    all_axes[0].set_ylabel("output 2")
    return figure
