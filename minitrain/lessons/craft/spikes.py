"""The lesson of `minitrain.craft.spikes`: spoilt batches of a real training are found, and others are not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from minitrain.comm import World
from minitrain.craft import spikes
from minitrain.lessons.craft import common
from minitrain.lessons.pictures import craft as pictures
from minitrain.lessons.rows import Claim, Rows

STEPS, WINDOW, THRESHOLD = 80, 32, 6.0
BAD = {52: "garbage", 60: "garbage", 68: "garbage"}  # when losses have settled


def demo(world: World) -> list[Claim]:
    """Trains a small GPT with three batches of garbage, and finds them; the picture: the loss, and the limit."""
    rows = Rows()
    with world.timed(f"{STEPS} steps on {world.size * common.SAMPLES} samples each"):
        losses, limits, found = watch(common.Training(world, BAD))
    world.figure(lambda: pictures.spikes(losses, limits, found))
    what = f"batches of garbage in {STEPS} that were missed, and others taken for them"
    rows.add(what, "0", 0, len(set(found) ^ set(BAD)), "batches", "Iglewicz & Hoaglin 1993, §3")
    rows.add(f"spikes in {STEPS} steps without garbage", "0", 0, len(watch(common.Training(world))[2]), "steps")
    # How many spikes in the window hide one more of the same height: half of it, or 1/(1 + k²) of it.
    for window in (64, 32):
        what, case = "spikes in the window that hide the next one", f"window of {window}"
        found_by = f"{what}, by the median, in two windows"
        rows.add(found_by, "w/2", window // 2, first_hiding(by_median, window), "spikes", "Hampel 1974", case=case)
        least = next(n for n in range(window) if n * (1 + THRESHOLD**2) >= window)
        found_by, hiding = f"{what}, by mean and standard deviation", first_hiding(by_mean, window)
        rows.add(found_by, "⌈w/(1 + k²)⌉", least, hiding, "spikes", case=case)
    return rows.claims()


def watch(training: common.Training) -> tuple[list[float], list[float], list[int]]:
    """Losses, the limits above which they would be spikes, and the numbers of those that are."""
    detector, losses, limits, found = spikes.Spikes(WINDOW, THRESHOLD), [], [], []
    for number in range(STEPS):
        losses.append(training.step(number))
        limits.append(detector.limit())
        if detector.seen(losses[-1]):
            found.append(number)
    return losses, limits, found


def by_median(window: Sequence[float], height: float) -> bool:
    detector = spikes.Spikes(len(window), THRESHOLD)
    detector.usual.extend(window)
    return detector.seen(height)


def by_mean(window: Sequence[float], height: float) -> bool:
    return height > statistics.fmean(window) + THRESHOLD * statistics.pstdev(window)


def first_hiding(found: Callable[[Sequence[float], float], bool], window: int) -> int:
    """How many spikes a window must have so that the next is missed; the other losses in it are nearly alike."""
    others = [1 + 1e-6 * number / window for number in range(window)]
    return next(n for n in range(window + 1) if not found([1000.0] * n + others[n:], 1000.0))
