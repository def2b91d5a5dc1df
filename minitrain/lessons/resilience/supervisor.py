"""The lesson of `minitrain.resilience.supervisor`: ranks that are killed, and a training that goes on."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience.common import Break, children, on_rank_0
from minitrain.lessons.rows import Rows
from minitrain.resilience import heartbeat
from minitrain.resilience.supervisor import supervise

RANKS, STEPS, EVERY = 3, 11, 3  # steps from checkpoint to checkpoint
FIRST, SECOND = 4, 8  # steps in which ranks are killed, the second after the restart


def demo(world: World) -> list[Claim]:
    """Kills ranks of a small training, which goes on by itself; the table shows equal bits, and when it gives up."""
    rows, kills = Rows("derived"), [(0, FIRST, "kill"), (2, SECOND, "kill")]
    with world.timed("three trainings, with 7 starts of 3 processes"):
        runs = on_rank_0(world, lambda: [train(breaks) for breaks in ([], kills, 9 * [(1, FIRST, "raise")])])
    (right, *_), (weights, finished, *_), (*_, attempts, _) = runs
    different = sum(a != b for a, b in zip(right, weights, strict=True))
    what = "weights that differ from an undisturbed training's, after two kills"
    rows.add(what, "0", 0, different, "1", how="compared")
    again = costs.steps_with_crashes(STEPS, EVERY, [FIRST, SECOND])
    rows.add("steps finished in all, with two kills", "T + Σ (crash mod every)", again, finished, "steps")
    what = "attempts at a training that fails at the same step each time"
    rows.add(what, "3", 3, attempts, "1")
    rows.add("processes left in the end", "0", 0, sum(run[-1] for run in runs), "1")
    return rows.claims()


def train(breaks: list[Break]) -> tuple[list[str], int, int, int]:
    """Weights, if it ended well, steps finished, attempts, and processes that still live."""
    with TemporaryDirectory() as folder, children(Path(folder) / "ranks", STEPS, EVERY, breaks) as ranks:
        weights = []
        try:
            # The step of the rank that is furthest behind: the others wait there.
            supervise(ranks.start, RANKS, lambda: min(heartbeat.steps(ranks.folder, RANKS)) + 1)
            weights = ranks.weights()
        except RuntimeError:  # it has given up
            pass
        return weights, len(ranks.finished()), len(ranks.started) // RANKS, ranks.alive()
