"""The lesson of `minitrain.resilience.stuck`: a rank that is stuck while it loads, and what the others' stacks say."""

from __future__ import annotations

import faulthandler
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import torch

from minitrain.collectives.native import all_reduce
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.composition.common import shared_folder
from minitrain.resilience.stuck import all_dumps, place, sentence, watch

PATIENCE = 30.0  # seconds until the demo gives up


def training_step(world: World, stuck: int, folder: Path, seconds: float) -> dict[int, str]:
    """One rank loads its data and does not come back for long; the others wait for it in an all-reduce."""
    gradient, dumps = torch.ones(3, device=world.device), {}
    if world.rank == stuck:
        dumps = load(world, folder, seconds)
    (folder / f"arrived{world.rank}").touch()
    all_reduce(gradient)  # here the others wait
    return dumps


def load(world: World, folder: Path, seconds: float) -> dict[int, str]:
    """Sleeps until each rank's stack has been written three times since all others arrived; returns these stacks.

    Of each file the second-to-last, because the last may still be written, or show a line after the sleep.
    """
    limit = time.monotonic() + PATIENCE
    others = [rank for rank in range(world.size) if rank != world.rank]
    while not all((folder / f"arrived{rank}").exists() for rank in others):
        assert time.monotonic() < limit, "the other ranks have not arrived"
        time.sleep(0.02)
    before = written(folder, world.size)
    while any(now < then + 3 for now, then in zip(written(folder, world.size), before, strict=True)):
        assert time.monotonic() < limit, "no stacks were written"
        time.sleep(5 * seconds)  # here this rank is stuck
    return {rank: text.split("Timeout")[-2] for rank, text in all_dumps(folder, world.size).items()}


def written(folder: Path, ranks: int) -> list[int]:
    """How often each rank's stack has been written; the one that is being written counts when the next begins."""
    return [text.count("Timeout") for text in all_dumps(folder, ranks).values()]


def line(function: Callable[..., object], marked: str) -> int:
    """The number of a line of this file."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (number for number, text in enumerate(lines, first) if text.rstrip().endswith(f"# {marked}"))
    return number


def clean_steps(world: World, file: TextIO, steps: int, seconds: float) -> int:
    """Characters that are written about some steps, each of which is done in time."""
    before = file.tell()
    for _ in range(steps):
        watch(file, seconds)
        all_reduce(torch.ones(3, device=world.device))
    faulthandler.cancel_dump_traceback_later()
    return file.seek(0, 2) - before


def demo(world: World, seconds: float = 0.15, steps: int = 20) -> list[Claim]:
    """Lets a rank hang while the others wait for it; the table compares what its stack and theirs say with the file.

    Args:
        seconds: Without progress until a rank's stack is written.
        steps: That nothing holds up, as a comparison.
    """
    assert seconds > 0 and steps > 0, f"invalid: {seconds=}, {steps=}"
    stuck = world.size // 2
    with shared_folder(world) as folder, open(folder / f"stack{world.rank}", "w+") as file:
        gather_objects(None)  # all files exist
        quiet = clean_steps(world, file, steps, PATIENCE)
        with world.timed("a step that hangs until all stacks are written"):
            watch(file, seconds)
            try:
                found = training_step(world, stuck, folder, seconds)
            finally:
                faulthandler.cancel_dump_traceback_later()
        dumps = gather_objects(found)[stuck]
    name = Path(__file__).name
    at = {True: f"in all_reduce at {name} line {line(training_step, 'here the others wait')}"}
    at[False] = f"in load at {name} line {line(load, 'here this rank is stuck')}"
    right = [place(dumps[rank]) == (rank != stuck, at[rank != stuck]) for rank in range(world.size)]
    others = [str(rank) for rank in range(world.size) if rank != stuck]
    waiting = f"rank{'s' * (len(others) > 1)} {', '.join(others)} wait{'s' * (len(others) == 1)} {at[True]}; "
    expected = (waiting if others else "") + f"rank {stuck} is {at[False]}"
    said = sentence(dumps)
    if world.rank == 0:
        print(said, end="\n\n")
    return as_key(
        Claim("ranks whose function and line are named rightly", "n", world.size, sum(right), source="derived"),
        Claim("sentences that say of all ranks where they wait or are", "1", 1, said == expected, source="derived"),
        Claim(f"characters of stacks written in {steps} steps that nothing holds up", "0", 0, quiet, source="derived"),
    )
