"""The lesson of `minitrain.craft.spikes`: spoilt batches of a real training are found, and others are not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.craft import spikes
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.craft import common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW, THRESHOLD = 32, 6.0
BAD = {52: "garbage", 60: "garbage", 68: "garbage"}  # when losses have settled


def demo(world: World, steps: int = 80) -> list[Claim]:
    """Trains a small GPT with three batches of garbage, and finds them; the picture: the loss, and the limit.

    Args:
        steps: At least 32, of which the first half of a window is never a spike.
    """
    if steps < WINDOW:
        raise ValueError(f"steps={steps} must be at least {WINDOW}, the window")
    bad = {number: kind for number, kind in BAD.items() if number < steps}
    with world.timed(f"{steps} steps on {world.size * common.SAMPLES} samples each"):
        losses, limits, found = watch(common.Training(world, bad), steps)
    training = common.Training(world)
    _, _, without = watch(training, steps)
    world.figure(lambda: picture(losses, limits, found))
    everywhere = gather_objects(found)
    return [
        Claim(
            f"batches of garbage in {steps} that were missed, and others taken for them",
            "0",
            0,
            len(set(found) ^ set(bad)),
            "batches",
            "Iglewicz & Hoaglin 1993, §3",
            key=True,
        ),
        Claim(f"spikes in {steps} steps without garbage", "0", 0, len(without), "steps", "derived", key=True),
        Claim(
            "ranks that find others than rank 0",
            "0",
            0,
            sum(each != everywhere[0] for each in everywhere),
            "ranks",
            "derived",
        ),
        *hidden(),
        *kinds(world, training),
        normal(),
    ]


def watch(training: common.Training, steps: int) -> tuple[list[float], list[float], list[int]]:
    """Losses, the limits above which they would be spikes, and the numbers of those that are."""
    detector, losses, limits, found = spikes.Spikes(WINDOW, THRESHOLD), [], [], []
    for number in range(steps):
        losses.append(training.step(number))
        limits.append(detector.limit())
        if detector.seen(losses[-1]):
            found.append(number)
    return losses, limits, found


def hidden() -> list[Claim]:
    """Claims on how many spikes in the window hide one more of the same height: half of it, or 1/(1 + k²) of it."""

    def by_median(window: Sequence[float], height: float) -> bool:
        detector = spikes.Spikes(len(window), THRESHOLD)
        detector.usual.extend(window)
        return detector.seen(height)

    def by_mean(window: Sequence[float], height: float) -> bool:
        return height > statistics.fmean(window) + THRESHOLD * statistics.pstdev(window)

    def first_hiding(found: Callable[[Sequence[float], float], bool], window: int) -> int:
        # The rest is nearly alike; a spike is a thousand times as high.
        others = [1 + 1e-6 * number / window for number in range(window)]
        return next(n for n in range(window + 1) if not found([1000.0] * n + others[n:], 1000.0))

    cases: dict[str, dict[str, Claim]] = {"median": {}, "mean": {}}
    for window in (64, 32, 200):
        name = f"window of {window}"
        cases["median"][name] = Claim("", "w/2", window // 2, first_hiding(by_median, window), "spikes", "Hampel 1974")
        least = next(n for n in range(window) if n * (1 + THRESHOLD**2) >= window)
        cases["mean"][name] = Claim("", "⌈w/(1 + k²)⌉", least, first_hiding(by_mean, window), "spikes", "derived")
    what = "spikes in the window that hide the next one"
    return [
        fold(f"{what}, by the median, and in two other windows", cases["median"], key=True),
        fold(f"{what}, by mean and standard deviation", cases["mean"], key=True),
    ]


def kinds(world: World, training: common.Training) -> list[Claim]:
    """Claims on a trained model: garbage has a higher loss than any text, and repeats a lower one than any text."""
    real = common.token_losses(training.model, training.batch(10_000)).mean(1)
    training.bad = {10_001: "garbage", 10_002: "repeats"}
    garbage, repeats = (common.token_losses(training.model, training.batch(n)).mean(1) for n in training.bad)
    return [
        Claim(
            "samples of text with a higher loss than a sample of garbage",
            "0",
            0,
            int((real >= garbage.min()).sum()),
            "samples",
            "derived",
        ),
        Claim(
            "samples of text with a lower loss than a sample of spaces alone",
            "0",
            0,
            int((real <= repeats.max()).sum()),
            "samples",
            "derived",
        ),
    ]


def normal() -> Claim:
    """The claim on the constant: the MAD of a normal distribution, from Python's own."""
    expected = 1 / statistics.NormalDist().inv_cdf(0.75)
    return Claim(
        "standard deviations in a normal distribution's MAD",
        "1/Φ⁻¹(3/4)",
        expected,
        spikes.NORMAL,
        "1",
        "Hampel 1974",
        "compared",
        absolute=5e-5,
    )


def picture(losses: Sequence[float], limits: Sequence[float], found: Sequence[int]) -> Figure:
    """Losses over the steps, the limit, and the spikes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.plot(losses, color="#000000", lw=1, label="loss of the step")
    axes.plot(limits, color="#0072B2", lw=1, ls="--", label="limit: median + 6 deviations")
    axes.plot(found, [losses[number] for number in found], "o", color="#D55E00", label="spikes")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
