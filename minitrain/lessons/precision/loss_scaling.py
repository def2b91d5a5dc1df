"""The lesson of `minitrain.precision.loss_scaling`: a real GPT's gradients in float16, and an overflow on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from minitrain.comm import Ledger, World
from minitrain.costs import precision as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.precision.common import Loss, batch, differing, one_thread
from minitrain.precision.formats import FLOAT16
from minitrain.precision.loss_scaling import LossScale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Micikevicius et al. 2018, §3.2"
SCALES = (1.0, 8.0, 2.0**16)


def demo(world: World) -> list[Claim]:
    """Scales a real GPT's gradients, and lets one rank overflow; the table counts zeros and skipped steps."""
    gradients = real_gradients(world)
    world.figure(lambda: picture(gradients))
    limit = costs.flushed_below(FLOAT16.exponent, FLOAT16.mantissa)
    flushed = {}
    for scale in SCALES:
        below = int(((gradients.abs() * scale <= limit) & (gradients != 0)).sum())
        zeros = int((((gradients * scale).half() == 0) & (gradients != 0)).sum())
        flushed[f"scale {scale:g}"] = Claim("", "#{|g| · scale ≤ 2^−25}", below, zeros, "1", PAPER)
        world.cost(f"of a GPT's gradients, 0 in float16 at scale {scale:g}", 100 * zeros / len(gradients), "%")
    exact = (gradients * SCALES[-1]).half().float() / SCALES[-1]
    normal = gradients.abs() * SCALES[-1] >= FLOAT16.smallest_normal
    normal &= gradients.abs() * SCALES[-1] < FLOAT16.largest
    error = ((exact - gradients).abs() / gradients.abs())[normal].max().item()
    return [
        fold("gradients of a GPT that become 0 in float16; at scales 1, 8 and 65536", flushed, key=True),
        Claim(
            "relative error of what survives",
            "u = 2^−11",
            2.0**-11,
            error,
            "1",
            "IEEE 754-2019, §4.3.1",
            "compared",
            "<=",
        ),
        *together(world),
        like_torch(),
    ]


@one_thread()
def real_gradients(world: World, steps: int = 20) -> Tensor:
    """All gradients of a small GPT in float32, after some steps on real text; the same on each rank.

    They are computed in float64, so that their counts are the same on every processor: in float32 one of 35,000
    gradients is so close to a limit that another order of additions moves it to the other side.
    """
    model = Loss(world.device).gpt.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps + 1):
        optimizer.zero_grad()
        tokens, targets = batch(world, step, rank=0)
        logits, _ = model(tokens)
        functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        if step < steps:
            optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).float().cpu()


def together(world: World, steps: int = 6, at: int = 2) -> list[Claim]:
    """Claims on a training in which the last rank alone overflows at one step."""
    weight = torch.ones(4, device=world.device)
    scale, skipped = LossScale(every=3), 0
    with Ledger() as ledger:
        for step in range(steps):
            gradient = torch.full_like(weight, scale.scale)
            if step == at and world.rank == world.size - 1:
                gradient[0] = torch.inf
            if scale.unscale([gradient]):
                weight -= 0.125 * gradient
            else:
                skipped += 1
            scale.update()
    return [
        Claim("steps that this rank skips, where one rank alone overflows", "1", 1, skipped, "1", PAPER, key=True),
        Claim("weights that differ between ranks afterwards", "0", 0, differing(weight), "1", PAPER, key=True),
        Claim("weight afterwards", "1 − (steps − 1) · 1/8", 1 - (steps - 1) / 8, weight[1].item(), "1", PAPER),
        # Halved at the overflow; the three steps after it are without one.
        Claim("scale afterwards", "2¹⁶ / 2 · 2", 2.0**16, scale.scale, "1", PAPER, key=True),
        Claim("bytes of agreement per step", "4", 4, ledger.payload("all_reduce") / steps, "B", "derived"),
    ]


def like_torch() -> Claim:
    """The scale over a hundred steps with overflows drawn at random, against torch's."""
    generator = torch.Generator().manual_seed(0)
    ours, torchs = LossScale(every=7), torch.amp.GradScaler("cpu", growth_interval=7)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, differ = torch.optim.SGD([parameter], lr=0.0), 0
    for overflows in torch.rand(100, generator=generator) < 0.2:
        torchs.scale(parameter.sum()).backward()
        assert parameter.grad is not None
        parameter.grad.mul_(torch.inf if overflows else 1)
        torchs.step(optimizer)
        torchs.update()
        optimizer.zero_grad()
        ours.overflow = bool(overflows)
        ours.update()
        differ += ours.scale != torchs.get_scale()
    what = "of 100 steps, those after which the scale differs from torch's"
    return Claim(what, "0", 0, differ, "1", "torch: amp.GradScaler", "compared")


def picture(gradients: Tensor) -> Figure:
    """The histogram of the gradients' sizes, and what of it float16 can hold at three scales."""
    from matplotlib.figure import Figure

    powers = gradients[gradients != 0].abs().log2()
    figure = Figure(figsize=(9, 3.6), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.hist(powers.numpy(), bins=range(-45, 17), color="#0072B2", edgecolor="white")
    top = axes.get_ylim()[1]
    for row, scale in enumerate(SCALES):
        shift = torch.tensor(scale).log2().item()
        left, right, height = -25 - shift, 16 - shift, top * (1.08 + 0.09 * row)
        axes.barh(height, right - left, 0.06 * top, left, color="#E69F00", hatch="///", edgecolor="white")
        axes.text(left - 0.5, height, f"scale {scale:,.0f}", ha="right", va="center", fontsize=9)
    axes.set_xlim(-56, 17)
    axes.set_xticks(range(-50, 17, 10), [f"$2^{{{power}}}$" for power in range(-50, 17, 10)])
    axes.set_xlabel("size of a gradient; the bars show what float16 can hold")
    axes.set_ylabel("gradients")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
