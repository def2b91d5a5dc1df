"""The lesson of `minitrain.craft.schedules`: rates as torch's schedulers give them, and what a decay does to noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from minitrain.comm import World
from minitrain.craft import schedules
from minitrain.lessons.rows import Claim, Rows

STEPS, WARMUP, DECAY = 200, 20, 50
LOSSES = 50_000  # quadratic ones at once: their mean varies by a third of a percent


def demo(world: World) -> list[Claim]:
    """Compares schedules with torch's, and measures the noise that a rate leaves."""
    rows = Rows()
    ours = torch.tensor([schedules.cosine(step, STEPS, WARMUP) for step in range(STEPS)], dtype=torch.float64)
    # torch goes from each rate to the next by some multiplications, so roundings of all steps add up.
    bound = 4 * STEPS * torch.finfo(torch.float64).eps
    what = "largest difference of a rate from torch's LinearLR, then CosineAnnealingLR"
    rows.near(what, ours, of_torch(STEPS, WARMUP), bound, "4Tε", "Loshchilov & Hutter 2017, §3")

    deviations = {"tolerance": 5 * (2 / LOSSES) ** 0.5}  # five, of a mean of squares
    for rate in (0.1, 0.5):
        case, limit = f"η = {rate}", rate / (2 - rate)
        what = f"noise that stays at a constant rate: mean square distance over {LOSSES:,} losses, two rates"
        left = settle([rate * schedules.constant(step, 0) for step in range(STEPS)])
        rows.add(what, "η/(2−η)", limit, left, "1", "Mandt et al. 2017, §3", case=case, **deviations)
        rates = [rate * schedules.warmup_stable_decay(step, STEPS, 0, STEPS // 2) for step in range(STEPS)]
        expected = 0.0
        for each in rates:  # a step keeps (1−η)² of what there was, and adds η²
            expected = (1 - each) ** 2 * expected + each**2
        what = "the same after a decay over the second half of the steps"
        rows.add(what, "v ← (1−ηₖ)²v + ηₖ²", expected, settle(rates), "1", case=case, **deviations)

    # The first step of a decay is still at the peak, and so is the first one after the warm-up.
    what = f"steps that runs of {STEPS} and {2 * STEPS} steps have in common, warm-up, stable, decay"
    rows.add(what, "T − d + 1", STEPS - DECAY + 1, in_common(), "steps", "Hu et al. 2024, §4")
    return rows.claims()


def of_torch(steps: int, warmup: int) -> Tensor:
    """The rate of each step, as an optimizer sees it under torch's schedulers."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rise = LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
    fall = CosineAnnealingLR(optimizer, steps - warmup, eta_min=0.1)
    scheduler, found = SequentialLR(optimizer, [rise, fall], [warmup]), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return torch.tensor(found, dtype=torch.float64)


def sgd(rates: Iterable[float], losses: int) -> Iterator[Tensor]:
    """The distances from the minimum after each step on many losses x²/2, whose gradients have noise of 1."""
    generator, x = torch.Generator().manual_seed(0), torch.zeros(losses, dtype=torch.float64)
    for rate in rates:
        x -= rate * (x + torch.randn(losses, generator=generator, dtype=torch.float64))
        yield x


def settle(rates: Iterable[float]) -> float:
    """Their mean square after the last step."""
    *_, x = sgd(rates, LOSSES)
    return x.square().mean().item()


def in_common() -> int:
    """Steps after which a run and one that is to be twice as long are at the same place."""
    schedule = partial(schedules.warmup_stable_decay, warmup=WARMUP, decay=DECAY)
    runs = [[0.1 * schedule(step, steps) for step in range(STEPS)] for steps in (STEPS, 2 * STEPS)]
    return sum(torch.equal(short, long) for short, long in zip(*(sgd(rates, 10) for rates in runs), strict=True))
