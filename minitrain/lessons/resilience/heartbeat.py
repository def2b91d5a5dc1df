"""The lesson of `minitrain.resilience.heartbeat`: ranks that hang, and ranks that are slow."""

from __future__ import annotations

import random
from itertools import product

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.rows import Rows
from minitrain.resilience.heartbeat import Monitor, stragglers

SECOND = 1000  # virtual time is in whole milliseconds, so that nothing rounds
LIMIT, INTERVAL = 3200, 500  # of the monitor in virtual time
RANKS, HUNG = 8, 5  # in virtual time: a rank hangs in this step
RUNS, STEPS = 20, 12


def demo(world: World) -> list[Claim]:
    """Lets ranks hang or be slow, in virtual time; the table shows who is named."""
    rows = Rows("Jiang et al. 2024, §4")
    cases = list(product(range(RANKS), (1, 100, INTERVAL - 1)))
    hangs = [hang(stuck, offset) for stuck, offset in cases]
    named = sum(late == [stuck] for (stuck, _), (late, _) in zip(cases, hangs, strict=True))
    what = f"{RANKS} ranks, each stuck in turn: runs in which the monitor names it alone"
    rows.add(what, "3n", 3 * RANKS, named, "1")
    for (stuck, offset), (_, delay) in zip(cases, hangs, strict=True):
        # The others' last step is the newest that the monitor sees, and all looks have one offset to steps.
        predicted = costs.seen_after(offset, LIMIT, INTERVAL) / SECOND
        what = f"time until it does, with a limit of {LIMIT} ms and looks every {INTERVAL} ms"
        case = f"rank {stuck}, looks {offset} ms before"
        rows.time(what, "⌈limit/i⌉ i + i − o", predicted, delay / SECOND, "derived", case=case)
    # Of the times in which ranks compute: whole steps are equally long on all of them.
    what, slow = f"{RUNS} runs with a rank that is half slower: named by the time in which it computes", RANKS - 1
    runs = [{rank: durations(rank, run, rank == slow) for rank in range(RANKS)} for run in range(RUNS)]
    rows.add(what, "20", RUNS, sum(stragglers(computing) == [slow] for computing in runs), "1")
    return rows.claims()


def durations(rank: int, run: int, slow: bool) -> list[int]:
    """Milliseconds in which a rank computes each step: 1 s ± 10 %, one step of 10 s; a slow rank half more."""
    draw = random.Random(1000 * run + rank)
    times = [draw.randint(900, 1100) for _ in range(STEPS)]
    times[draw.randrange(STEPS)] *= 10
    return [3 * time // 2 if slow else time for time in times]


def hang(stuck: int, offset: int) -> tuple[list[int], int]:
    """A rank hangs; steps take 1 s, and the monitor's first look comes `offset` ms before one.

    Returns:
        Whom the monitor names, and how long after the others' last step.
    """
    monitor, now = Monitor(RANKS, LIMIT), SECOND - offset
    while True:
        done = now // SECOND - 1  # step s is done after s + 1 seconds
        # The others do their part of the step in which one hangs, and wait.
        late = monitor.late([min(done, HUNG - 1 if rank == stuck else HUNG) for rank in range(RANKS)], now)
        if late:
            return late, now - SECOND * (HUNG + 1)
        now += INTERVAL
