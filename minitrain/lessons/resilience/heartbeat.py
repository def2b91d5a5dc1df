"""The lesson of `minitrain.resilience.heartbeat`: ranks that hang, ranks that are slow, and clean runs."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import all_gather
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.composition.common import shared_folder
from minitrain.resilience.heartbeat import Monitor, beat, stragglers
from minitrain.resilience.heartbeat import steps as steps_of

MEGASCALE = "Jiang et al. 2024, §4"
SECOND = 1000  # virtual time is in whole milliseconds, so that nothing rounds
RUNS = 20


def durations(rank: int, run: int, steps: int, slow: bool = False) -> list[int]:
    """Milliseconds in which a rank computes each step: 1 s ± 10 %, one step of 10 s; a slow rank half more."""
    draw = random.Random(1000 * run + rank)
    times = [draw.randint(900, 1100) for _ in range(steps)]
    times[draw.randrange(steps)] *= 10
    return [3 * time // 2 if slow else time for time in times]


def hang(ranks: int, stuck: int, at: int, offset: int, limit: int, interval: int) -> tuple[list[int], int]:
    """In virtual time a rank hangs in step `at`: whom a monitor names, and how long after the others' last step.

    Args:
        ranks: All of them.
        stuck: The one that hangs.
        at: The step in which it does; steps take 1 s.
        offset: By how many ms the monitor's first look comes before a step.
        limit: The monitor's.
        interval: Between its looks.
    """
    monitor, now = Monitor(ranks, limit), SECOND - offset
    while True:
        done = now // SECOND - 1  # step s is done after s + 1 seconds
        # The others do their part of the step in which one hangs, and wait.
        late = monitor.late([min(done, at - 1 if rank == stuck else at) for rank in range(ranks)], now)
        if late:
            return late, now - SECOND * (at + 1)
        now += interval


def delays(ranks: int, limit: int, interval: int) -> list[Claim]:
    """Claims on who is named, each rank in turn, and when, for several times between look and step."""
    named, cases = 0, {}
    for stuck in range(ranks):
        for offset in (1, 100, interval - 1):
            late, delay = hang(ranks, stuck, 5, offset, limit, interval)
            named += late == [stuck]
            # The others' last step is the newest that the monitor sees, and all looks have one offset to steps.
            predicted = costs.seen_after(offset, limit, interval)
            name = f"rank {stuck}, looks {offset} ms before"
            cases[name] = Claim("", "⌈limit/i⌉ i + i − o", predicted / SECOND, delay / SECOND, "virtual s", "derived")
    what = f"{ranks} ranks, each stuck in turn: runs in which the monitor names it alone"
    return as_key(
        Claim(what, "3n", 3 * ranks, named, source=MEGASCALE),
        fold(f"time until it does, with a limit of {limit} ms and looks every {interval} ms", cases),
    )


def clean(world: World, steps: int, limit: int) -> tuple[int, int, int]:
    """Clean runs in which a monitor, the computing times, or whole steps give an alarm."""
    alarms = slow = whole = 0
    for run in range(RUNS):
        mine = torch.tensor([durations(world.rank, run, steps)], device=world.device)
        everyone = all_gather(mine).wait()
        assert everyone is not None
        seconds = dict(enumerate(everyone.tolist()))
        slow += bool(stragglers(seconds))
        # A step ends when the slowest rank is done, so that whole steps take equally long on all.
        step = [max(times) for times in zip(*seconds.values(), strict=True)]
        whole += bool(stragglers(dict.fromkeys(seconds, step)))
        monitor, now = Monitor(world.size, limit), 0
        for number, time in enumerate(step):
            now += time
            alarms += bool(monitor.late([number] * world.size, now))
    return alarms, slow, whole


def slow_rank(world: World, steps: int) -> tuple[int, int]:
    """Runs in which the last rank, half slower than others, is named: by computing time, and by whole steps."""
    by_computing = by_step = 0
    for run in range(RUNS):
        slow = world.size - 1
        mine = torch.tensor([durations(world.rank, run, steps, slow=world.rank == slow)], device=world.device)
        everyone = all_gather(mine).wait()
        assert everyone is not None
        seconds = dict(enumerate(everyone.tolist()))
        by_computing += stragglers(seconds) == [slow]
        step = [max(times) for times in zip(*seconds.values(), strict=True)]
        by_step += stragglers(dict.fromkeys(seconds, step)) == [slow]
    return by_computing, by_step


def on_ranks(world: World, folder: Path) -> int:
    """Each rank in turn stops beating: how often all ranks, as monitors of the same files, name it alone."""
    named = 0
    for stuck in range(world.size):
        place = folder / str(stuck)
        place.mkdir(exist_ok=True)
        monitor = Monitor(world.size, limit=3)
        for step in range(3):
            if world.rank != stuck or step < 2:
                beat(place, world.rank, step)
            gather_objects(None)  # like the all-reduce of a step: no rank is ahead
            assert not monitor.late(steps_of(place, world.size), step)
            gather_objects(None)
        named += monitor.late(steps_of(place, world.size), 5) == [stuck]
        gather_objects(None)
    return named


def demo(world: World, simulated: int = 8, steps: int = 12) -> list[Claim]:
    """Lets ranks hang or be slow, in virtual time and for real; the table shows who is named, and false alarms.

    Args:
        simulated: Ranks of the run in virtual time.
        steps: Of each run with slow ranks.
    """
    claims = delays(simulated, limit=3200, interval=500)
    with shared_folder(world) as folder:
        named = on_ranks(world, folder)
    # Longer than the longest healthy step, of 10 · 1.1 s.
    alarms, slow, whole = clean(world, steps, limit=12 * SECOND)
    claims += as_key(
        Claim(
            "real ranks, each silent in turn: runs in which it is named alone", "n", world.size, named, source=MEGASCALE
        ),
        Claim(
            f"false alarms in {RUNS} clean runs with single steps of ten times the length",
            "0",
            0,
            alarms + slow + whole,
        ),
    )
    what, hidden = (f"{RUNS} runs with a rank that is half slower: {way}" for way in ("by computing", "by whole steps"))
    if world.size == 1:
        few = (Claim.needs_ranks(2, text, "20", MEGASCALE, True) for text in (what, hidden))
        return [*claims, *few]
    by_computing, by_step = slow_rank(world, steps)
    return [
        *claims,
        Claim(what, "20", RUNS, by_computing, source=MEGASCALE, key=True),
        Claim(hidden, "0", 0, by_step, source="derived", key=True),
    ]
