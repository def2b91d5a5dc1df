"""The lesson of `minitrain.resilience.supervisor`: ranks that are killed, and how often that is to be expected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.composition.common import shared_folder
from minitrain.lessons.resilience.common import children, on_rank_0
from minitrain.resilience import heartbeat
from minitrain.resilience.supervisor import Crash, supervise

RANKS = 3


@dataclass(frozen=True)
class Runs:
    """What came of three trainings, the last of which crashes in each attempt."""

    different: int
    crashes: list[Crash]
    finished: int
    attempts: int
    gave_up: str
    left: int


def runs(folder: Path, steps: int, every: int, kills: tuple[int, int]) -> Runs:
    """Train undisturbed, killed twice, and with an error that comes back."""
    with children(folder / "undisturbed", steps, every) as undisturbed:
        supervise(undisturbed.start, RANKS, lambda: 0)
        right = undisturbed.weights()
    with children(folder / "killed", steps, every, [(0, kills[0], "kill"), (2, kills[1], "kill")]) as killed:
        # The step of the rank that is furthest behind: the others wait there.
        crashes = supervise(killed.start, RANKS, lambda: min(heartbeat.steps(killed.folder, RANKS)) + 1)
        different = sum(a != b for a, b in zip(right, killed.weights(), strict=True))
        finished, left = len(killed.finished()), killed.alive()
    with children(folder / "broken", steps, every, 9 * [(1, kills[0], "raise")]) as broken:
        gave_up = ""
        try:
            supervise(broken.start, RANKS, lambda: min(heartbeat.steps(broken.folder, RANKS)) + 1)
        except RuntimeError as error:
            gave_up = str(error)
        return Runs(different, crashes, finished, len(broken.started) // RANKS, gave_up, left + broken.alive())


def failing_days(p: float, n: int, days: int) -> Claim:
    """The claim on the share of days on which at least one of n fails, each with chance p, thrown one by one."""
    generator = torch.Generator().manual_seed(n)
    failed = sum(
        int((torch.rand(500, n, generator=generator, dtype=torch.float64) < p).any(1).sum()) for _ in range(days // 500)
    )
    share = costs.any_fails(p, n)
    # Four standard deviations of a share among so many days.
    slack = 4 * (0.25 / days) ** 0.5
    what = f"share of {days:,} simulated days with a failure: {n:,} of them, each with {100 * p:g} % a day"
    return Claim(what, "1 − (1 − p)ⁿ", share, failed / days, source="derived", absolute=slack)


def demo(world: World, steps: int = 11, every: int = 3, first: int = 4, second: int = 8) -> list[Claim]:
    """Kills ranks of a small training, which goes on by itself; the table shows equal bits, and when it gives up.

    Args:
        steps: Of the training.
        every: Steps from checkpoint to checkpoint.
        first: The step in which rank 0 is killed.
        second: The step in which rank 2 is killed, after the restart.
    """
    kills = [first, second]
    assert 0 < first < steps and first - first % every < second < steps, f"invalid: {first=}, {second=} for {steps=}"
    with shared_folder(world) as folder, world.timed("three trainings, with 7 starts of 3 processes"):
        found = on_rank_0(world, lambda: runs(folder, steps, every, (first, second)))
    again = costs.steps_with_crashes(steps, every, kills)
    named = int(f"crashes at step {first}," in found.gave_up)
    return [
        *as_key(
            Claim(
                "weights that differ from an undisturbed training's, after two kills",
                "0",
                0,
                found.different,
                source="derived",
                how="compared",
            ),
            Claim(
                "steps finished in all, with two kills",
                "T + Σ (crash mod every)",
                again,
                found.finished,
                "steps",
                "derived",
            ),
            Claim(
                "attempts at a training that fails at the same step each time", "3", 3, found.attempts, source="derived"
            ),
            Claim("processes left in the end", "0", 0, found.left, source="derived"),
            failing_days(0.01, 128, 20_000),
        ),
        Claim(
            "crashes seen, killed by signal 9 in the step expected", "2", 2, seen(found.crashes, kills), "1", "derived"
        ),
        Claim("messages on giving up that name the step", "1", 1, named, source="derived"),
        failing_days(0.0027, 1000, 4_000),
    ]


def seen(crashes: list[Crash], kills: list[int]) -> int:
    """Crashes that are what was done: signal 9, the rank, the step."""
    return sum(
        (crash.code, crash.rank, crash.step) == (-9, rank, step)
        for crash, rank, step in zip(crashes, (0, 2), kills, strict=False)
    )
