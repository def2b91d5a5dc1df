"""The lesson of `minitrain.recomputation.delayed_precision`: bytes, errors, and the loss of a training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import cnn
from minitrain.recomputation.delayed_precision import DelayedPrecision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTION = "Jain et al. 2018"
WIDTHS = (16, 10, 8)


class Count(DelayedPrecision):
    """Counts the bytes that it keeps of activations.

    Attributes:
        bytes: So far; parameters apart.
    """

    def __init__(self, bits: int):
        super().__init__(bits)
        self.bytes = 0

    def encode(self, x: Tensor) -> object:
        kept = super().encode(x)
        if isinstance(kept, tuple):
            self.bytes += kept[0].untyped_storage().nbytes()
        return kept


def values(world: World, count: int = 4000) -> Tensor:
    """Of all sizes from 2⁻⁶ to 2⁸, which each of the formats has with all bits of its fraction; this rank's."""
    generator = torch.Generator().manual_seed(world.rank)
    sizes = 2 ** (14 * torch.rand(count, generator=generator) - 6)
    return (sizes * torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)).to(world.device)


def demo(world: World, samples: int = 7) -> list[Claim]:
    """Keeps activations in fewer bits; the table shows bytes and errors, the figure the loss of a training.

    Args:
        samples: Images in each rank's batch.
    """
    images, labels = (each.to(world.device) for each in cnn.letters(samples, seed=world.rank))
    model = cnn.CNN().to(world.device)
    right = F.cross_entropy(model(images), labels)
    bytes_, rounding, forward, backward = {}, {}, {}, {}
    for bits in WIDTHS:
        case = f"{bits} bits"
        x, weight = values(world), torch.nn.Parameter(torch.ones(3, 5, device=world.device))
        rows = x[:35].view(7, 5)
        counter = Count(bits)
        with counter:
            y = rows.requires_grad_() @ weight.T  # 35 elements are kept: no multiple of 3
        bytes_[case] = Claim("", "2N, 4⌈N/3⌉, N", costs.stash_bytes(35, bits), counter.bytes, "B", SECTION)
        # The gradient of the weight is the sum of a gradient of 1 times what was kept.
        y.sum().backward()
        assert weight.grad is not None
        bound = costs.rounding(bits) * rows.detach().double().abs().sum(0)  # [5]
        error = (weight.grad.double() - rows.detach().double().sum(0)).abs() / bound
        sums = 7 * 2.0**-24 / costs.rounding(bits)  # float32's own error of seven additions
        backward[case] = Claim("", "u · Σ|x|", 1, float(error.max()), "1", "derived", "compared", "<=", absolute=sums)
        hooks = DelayedPrecision(bits)
        again = hooks.decode(hooks.encode(x))
        largest = float(((again - x).abs() / x.abs()).max())
        rounding[case] = Claim("", "2⁻¹¹, 2⁻⁵, 2⁻⁴", costs.rounding(bits), largest, "1", SECTION, "compared", "<=")
        with DelayedPrecision(bits):
            loss = F.cross_entropy(model(images), labels)
        forward[case] = Claim("", "L", right.item(), loss.item(), "1", SECTION, "compared")
        with world.timed(f"forward and backward of a CNN, activations in {bits} bits"):
            loss.backward()
    world.figure(lambda: curves(trainings()))
    return [
        fold("bytes kept of 35 values, in 16, 10 and 8 bits", bytes_, key=True),
        fold("largest relative error of a kept value", rounding, key=True),
        fold("loss of a step, as with all bits", forward, key=True),
        fold("error of a weight's gradient, over its bound", backward, key=True),
    ]


def trainings(steps: int = 120) -> dict[str, list[float]]:
    """The loss of each step of a CNN that learns letters, with all bits and with fewer."""
    ways = {f"{bits} bits": partial(DelayedPrecision, bits) for bits in WIDTHS}
    return {"32 bits": cnn.losses(steps=steps), **{name: cnn.losses(how, steps=steps) for name, how in ways.items()}}


def curves(losses: dict[str, list[float]]) -> Figure:
    """The losses over the steps, one line for each width; means of ten steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, values), style in zip(losses.items(), ("-", "--", "-.", ":"), strict=True):
        means = [sum(values[at : at + 10]) / 10 for at in range(0, len(values) - 9, 10)]
        axes.plot(range(10, len(values) + 1, 10), means, style, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, mean of ten steps")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="kept in")
    return figure
