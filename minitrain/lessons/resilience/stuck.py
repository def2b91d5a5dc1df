"""The lesson of `minitrain.resilience.stuck`: a rank that is stuck while it loads, and what the others' stacks say."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path

import torch

from minitrain.collectives.native import all_reduce
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons import Claim
from minitrain.lessons.rows import Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.resilience.stuck import Watchdog, all_dumps, sentence

SECONDS, PATIENCE = 0.15, 30.0  # without progress until a stack is written, and until the demo gives up


def demo(world: World) -> list[Claim]:
    """Lets a rank hang while the others wait for it; the table compares what its stack and theirs say with the file."""
    rows, n, stuck, gradient = Rows("derived"), world.size, world.size // 2, torch.ones(3, device=world.device)
    with shared_folder(world) as folder:
        watchdog = Watchdog(folder / f"stack{world.rank}", SECONDS)
        gather_objects(None)  # all files exist
        with world.timed("a step that hangs until all stacks are written"):
            try:
                found = training_step(world, stuck, folder, gradient)
            finally:
                watchdog.close()
        dumps = gather_objects(found)[stuck]
    name = Path(__file__).name
    waits = f"in all_reduce at {name} line {line(training_step, 'here the others wait')}"
    loads = f"in load at {name} line {line(load, 'here this rank is stuck')}"
    others = ", ".join(str(rank) for rank in range(n) if rank != stuck)
    expected = f"rank{'s' * (n > 2)} {others} wait{'s' * (n == 2)} {waits}; " if others else ""
    said = sentence(dumps) == f"{expected}rank {stuck} is {loads}"
    rows.add("sentences that say of all ranks where they wait or are", "1", 1, said, "1")
    if world.rank == 0:
        print(sentence(dumps), end="\n\n")
    return rows.claims()


def training_step(world: World, stuck: int, folder: Path, gradient: torch.Tensor) -> dict[int, str]:
    """One rank loads its data and does not come back for long; the others wait for it in an all-reduce."""
    dumps = load(world, folder) if world.rank == stuck else {}
    (folder / f"arrived{world.rank}").touch()
    all_reduce(gradient)  # here the others wait
    return dumps


def load(world: World, folder: Path) -> dict[int, str]:
    """Sleeps until each rank's stack has been written three times since all others arrived; returns these stacks.

    Of each file the second-to-last, because the last may still be written, or show a line after the sleep.
    """
    limit = time.monotonic() + PATIENCE
    while len(list(folder.glob("arrived*"))) < world.size - 1:
        assert time.monotonic() < limit, "the other ranks have not arrived"
        time.sleep(0.02)
    before = written(folder, world.size)
    while any(now < then + 3 for now, then in zip(written(folder, world.size), before, strict=True)):
        assert time.monotonic() < limit, "no stacks were written"
        time.sleep(5 * SECONDS)  # here this rank is stuck
    return {rank: text.split("No progress")[-2] for rank, text in all_dumps(folder, world.size).items()}


def written(folder: Path, ranks: int) -> list[int]:
    """How often each rank's stack has been written; the one that is being written counts when the next begins."""
    return [text.count("No progress") for text in all_dumps(folder, ranks).values()]


def line(function: Callable[..., object], marked: str) -> int:
    """The number of a line of this file."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (number for number, text in enumerate(lines, first) if text.rstrip().endswith(f"# {marked}"))
    return number
