"""The lesson of `minitrain.craft.schedules`: rates as torch's schedulers give them, and what a decay does to noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from minitrain.comm import World
from minitrain.craft import schedules
from minitrain.lessons.claims import Claim, fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, WARMUP, DECAY = 200, 20, 50
LOSSES = 50_000  # quadratic ones at once: their mean varies by a third of a percent


def demo(world: World) -> list[Claim]:
    """Compares schedules with torch's, and measures the noise that a rate leaves; the picture: rates over a run."""
    world.figure(picture)
    return [like_torch(), *noise(), *open_end(world)]


def rates(schedule: Callable[[torch.optim.Optimizer], LRScheduler], steps: int, lr: float = 1.0) -> list[float]:
    """The rate of each step, as an optimizer sees it."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, found = schedule(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def like_torch() -> Claim:
    """The claim that warm-up and cosine are torch's, for several lengths."""
    cases = {}
    for steps, warmup in ((STEPS, WARMUP), (7, 3), (100, 1)):

        def theirs(optimizer: torch.optim.Optimizer, steps: int = steps, warmup: int = warmup) -> LRScheduler:
            rise = LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
            fall = CosineAnnealingLR(optimizer, steps - warmup, eta_min=0.1)
            return SequentialLR(optimizer, [rise, fall], [warmup])

        ours = [schedules.cosine(step, steps, warmup) for step in range(steps)]
        apart = max(abs(a - b) for a, b in zip(ours, rates(theirs, steps), strict=True))
        name = f"T = {steps}, w = {warmup}"
        # torch goes from each rate to the next, so roundings of all steps add up.
        most = steps * torch.finfo(torch.float64).eps * 4
        cases[name] = Claim(
            "", "η/10 + 9η/20 · (1 + cos πx)", 0, apart, "1", "Loshchilov & Hutter 2017, §3", "compared", absolute=most
        )
    return fold(
        "largest difference of a rate from torch's LinearLR, then CosineAnnealingLR, for three lengths", cases, key=True
    )


def settle(rate: Callable[[int], float], steps: int, seed: int = 0) -> float:
    """Mean square of the distance from the minimum after SGD on many losses x²/2, whose gradients have noise of 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(LOSSES, dtype=torch.float64)
    for step in range(steps):
        x -= rate(step) * (x + torch.randn(LOSSES, generator=generator, dtype=torch.float64))
    return x.square().mean().item()


def noise() -> list[Claim]:
    """Claims on what a constant rate η leaves, η/(2−η), and what is left of it after a decay."""
    most = 5 * (2 / LOSSES) ** 0.5  # five standard deviations of a mean of squares
    cases, left = {}, {}
    for rate in (0.1, 0.5, 0.02):
        steps = 400

        def constant(step: int, rate: float = rate) -> float:
            return rate * schedules.constant(step, 0)

        cases[f"η = {rate}"] = Claim(
            "",
            "η/(2−η)",
            rate / (2 - rate),
            settle(constant, steps),
            "1",
            "Mandt et al. 2017, §3",
            "counted",
            tolerance=most,
        )

        def decayed(step: int, rate: float = rate) -> float:
            return rate * schedules.warmup_stable_decay(step, 400, 0, 200)

        # Each step keeps (1−η)² of what there was and adds η²: the recursion, for rates that fall.
        expected = 0.0
        for step in range(steps):
            expected = (1 - decayed(step)) ** 2 * expected + decayed(step) ** 2
        left[f"η = {rate}"] = Claim(
            "", "v ← (1−ηₖ)²v + ηₖ²", expected, settle(decayed, steps), "1", "derived", "counted", tolerance=most
        )
    return [
        fold(
            f"noise that stays at a constant rate: mean square distance over {LOSSES:,} losses, three rates",
            cases,
            key=True,
        ),
        fold("the same after a decay over the second half of the steps", left, key=True),
    ]


def train(world: World, schedule: Callable[[int], float], steps: int) -> list[Tensor]:
    """The weights after each step of a small model."""
    generator = torch.Generator().manual_seed(1)
    model = nn.Linear(8, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler, found = LambdaLR(optimizer, schedule), []
    for _ in range(steps):
        x = torch.randn(4, 8, generator=generator, dtype=torch.float64)
        (model(x) - x.flip(-1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return found


def open_end(world: World) -> list[Claim]:
    """Claims on runs of two lengths: with WSD they are the same until the shorter one decays, with a cosine never."""
    found = {}
    for name, schedule in (
        (
            "warm-up, stable, decay",
            lambda steps: lambda step: schedules.warmup_stable_decay(step, steps, WARMUP, DECAY),
        ),
        ("cosine", lambda steps: lambda step: schedules.cosine(step, steps, WARMUP)),
    ):
        short, long = (train(world, schedule(steps), STEPS) for steps in (STEPS, 2 * STEPS))
        found[name] = sum(torch.equal(a, b) for a, b in zip(short, long, strict=True))
    what = f"steps that runs of {STEPS} and {2 * STEPS} steps have in common"
    return [
        Claim(
            f"{what}, warm-up, stable, decay",
            "T − d + 1",  # the first step of the decay is still at the peak
            STEPS - DECAY + 1,
            found["warm-up, stable, decay"],
            "steps",
            "Hu et al. 2024, §4",
            "compared",
            key=True,
        ),
        # The first step after the warm-up is at the peak in both.
        Claim(
            f"{what}, cosine",
            "w + 1",
            WARMUP + 1,
            found["cosine"],
            "steps",
            "Loshchilov & Hutter 2017, §3",
            "compared",
            key=True,
        ),
    ]


def picture() -> Figure:
    """The factor of the peak rate over the steps of a run, a line per schedule."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for name, factor, color in (
        ("cosine to a tenth", lambda step: schedules.cosine(step, STEPS, WARMUP), "#0072B2"),
        ("warm-up, stable, decay", lambda step: schedules.warmup_stable_decay(step, STEPS, WARMUP, DECAY), "#D55E00"),
        ("constant", lambda step: schedules.constant(step, WARMUP), "#000000"),
    ):
        axes.plot(range(STEPS), [factor(step) for step in range(STEPS)], color=color, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate\n/ its peak")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
