"""The lesson of `minitrain.craft.spikes`: spoilt batches of a real training are found, and others are not."""

from __future__ import annotations

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
    what = "spikes in the window that hide the next one, by the median, in two windows"
    for window in (64, 32):
        case = f"window of {window}"
        rows.add(what, "w/2", window // 2, first_hiding(window), "spikes", "Hampel 1974", case=case)
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


def first_hiding(window: int) -> int:
    """How many spikes a window must have so that the next is missed; the other losses in it are nearly alike."""
    for spiked in range(window + 1):
        detector = spikes.Spikes(window, THRESHOLD)
        detector.usual.extend([1000.0] * spiked + [1 + 1e-6 * number for number in range(window - spiked)])
        if not detector.seen(1000.0):
            break
    return spiked
