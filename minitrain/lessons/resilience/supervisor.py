"""The lesson of `minitrain.resilience.supervisor`: ranks that are killed, and a training that goes on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience.common import Break, children, on_rank_0
from minitrain.lessons.rows import Rows
from minitrain.resilience import heartbeat
from minitrain.resilience.supervisor import supervise

RANKS, EVERY = 3, 3  # steps from checkpoint to checkpoint


def demo(world: World, steps: int = 11, first: int = 4, second: int = 8) -> list[Claim]:
    """Kills ranks of a small training, which goes on by itself; the table shows equal bits, and when it gives up.

    Args:
        steps: Of the training, which is saved after each third.
        first: The step in which rank 0 is killed.
        second: The step in which rank 2 is killed, after the restart.
    """
    assert 0 < first < steps and first - first % EVERY < second < steps, f"invalid: {first=}, {second=} for {steps=}"
    rows = Rows("derived")

    def three_trainings() -> list[Run]:
        kills: list[Break] = [(0, first, "kill"), (2, second, "kill")]
        return [train(steps, breaks) for breaks in ([], kills, 9 * [(1, first, "raise")])]

    with world.timed("three trainings, with 7 starts of 3 processes"):
        right, killed, broken = on_rank_0(world, three_trainings)
    different = sum(a != b for a, b in zip(right.weights, killed.weights, strict=True))
    what = "weights that differ from an undisturbed training's, after two kills"
    rows.add(what, "0", 0, different, "1", how="compared")
    again = costs.steps_with_crashes(steps, EVERY, [first, second])
    rows.add("steps finished in all, with two kills", "T + Σ (crash mod every)", again, killed.finished, "steps")
    what = "attempts at a training that fails at the same step each time"
    rows.add(what, "3", 3, broken.attempts, "1")
    rows.add("processes left in the end", "0", 0, right.left + killed.left + broken.left, "1")
    return rows.claims()


class Run(NamedTuple):
    """What came of a training: weights, if it ended well, steps finished, attempts, and processes that still live."""

    weights: list[str]
    finished: int
    attempts: int
    left: int


def train(steps: int, breaks: list[Break]) -> Run:
    with TemporaryDirectory() as folder, children(Path(folder) / "ranks", steps, EVERY, breaks) as ranks:
        weights = []
        try:
            # The step of the rank that is furthest behind: the others wait there.
            supervise(ranks.start, RANKS, lambda: min(heartbeat.steps(ranks.folder, RANKS)) + 1)
            weights = ranks.weights()
        except RuntimeError:  # it has given up
            pass
        return Run(weights, len(ranks.finished()), len(ranks.started) // RANKS, ranks.alive())
