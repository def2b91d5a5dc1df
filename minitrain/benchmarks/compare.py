"""How two ways of doing the same are compared: in turns, many times, by their medians.

Taking turns means that whatever else the machine does hits both alike. Every other turn goes backwards: it matters, by
about a percent, what ran just before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minitrain.comm.control import gather_objects
from minitrain.comm.world import World


@dataclass(frozen=True)
class Comparison:
    """One line of the benchmark table."""

    what: str  # what was done, on how many ranks
    ours: float  # median seconds of minitrain
    theirs: float  # median seconds of what a user would pick instead
    against: str  # what that is
    speed: bool = True  # the ratio is theirs / ours, higher is better; otherwise ours / theirs, lower is better
    target: float | None = None  # what the ratio should reach; None where nothing was set

    @property
    def ratio(self) -> float:
        """How the two compare: speed over speed, or cost over cost."""
        return self.theirs / self.ours if self.speed else self.ours / self.theirs

    @property
    def reached(self) -> bool | None:
        """Whether the target was reached; None where there is none."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.speed else self.ratio <= self.target


@dataclass(frozen=True)
class Medians:
    """Median seconds of a repetition: by the wall's clock (slowest rank), and of CPU time (all ranks together)."""

    wall: float
    cpu: float


def by_both_clocks(
    what: str, ours: Medians, theirs: Medians, against: str, most: float | None = None
) -> list[Comparison]:
    """Two lines: the cost in CPU time, which may be `most` of theirs, and the speed by the wall's clock."""
    cost = Comparison(f"{what}, CPU time", ours.cpu, theirs.cpu, against, speed=False, target=most)
    return [cost, Comparison(f"{what}, wall clock", ours.wall, theirs.wall, against)]


def interleaved(
    world: World,
    ways: Mapping[str, Callable[[], object]],
    repeats: int,
    warmups: int = 4,
    after: Callable[[], object] = lambda: None,
) -> dict[str, Medians]:
    """Run each way in turn, there and back, `repeats` times; returns the medians of each, the same on every rank.

    `after` is called after each repetition, outside of the time that is measured.
    """
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warmups + repeats):
        order = list(ways) if turn % 2 == 0 else list(ways)[::-1]
        for name in order:
            gather_objects(None)  # all ranks begin together
            world.finish()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            ways[name]()
            world.finish()
            if turn >= warmups:
                wall[name].append(time.perf_counter() - begin)
                cpu[name].append(time.process_time() - begin_cpu)
            after()
    everyone = gather_objects((wall, cpu))
    medians = {}
    for name in ways:
        slowest = [max(times) for times in zip(*(walls[name] for walls, _ in everyone), strict=True)]
        together = [sum(times) for times in zip(*(cpus[name] for _, cpus in everyone), strict=True)]
        medians[name] = Medians(statistics.median(slowest), statistics.median(together))
    return medians
