"""The lesson of `minitrain.checkpointing.flash`: processes and nodes die, and others restore what they had.

A process that dies is one whose objects are thrown away, with its files in memory kept; a node's death removes these,
too. Each rank is a node of its own here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from minitrain.checkpointing.flash import Flash
from minitrain.comm import VirtualClock, World
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group
from minitrain.costs import checkpointing as costs
from minitrain.lessons.checkpointing.asynchronous import COPY, Copies
from minitrain.lessons.rows import Claim, Rows

GEMINI = "Wang et al. 2023, §4"
RUN = 17  # the number of the training
ALPHA, BETA = 3.0, 2e-3  # virtual seconds: per message, and per byte of it

ELEMENTS = 501  # of a rank's shard, 8 bytes each


def demo(world: World) -> list[Claim]:
    """Saves into shared memory; the table shows states after dead processes and nodes, memory and stall."""
    # What lies in the CPU's memory is sent from there, which NCCL cannot.
    rows, n, size, group = Rows(GEMINI), world.size, 8 * ELEMENTS, new_group(range(world.size), backend="gloo")
    for dies in ("a process", "the last rank's node"):
        what = f"elements changed after {dies} has died"
        if "node" in dies and n == 1:
            rows.needs(2, what, "0")
            continue
        with memory() as folder:
            flash = Flash(folder, state(world, 0), RUN, group=group)
            held = sum(file.stat().st_size for file in folder.iterdir())
            for step in (1, 2, 3):
                flash.save(step, state(world, step))
            if "node" in dies and world.rank == n - 1:
                shutil.rmtree(folder)
                folder.mkdir()
            del flash
            rows.add(what, "0", 0, restored(world, folder, group), "elements", how="compared")
        rows.add("bytes of memory", "4S + 64", costs.flash_memory(size), held, "B", "derived", case=dies)
    with memory() as folder:
        flash = Flash(folder, state(world, 0), RUN, group=group)
        # The numbers in the head of a slot take no time.
        with VirtualClock(ALPHA, BETA) as clock, Copies(clock, least=size):
            flash.save(1, state(world, 1))
    world.draw = lambda: clock.timeline.draw("a save into memory: a copy, and the exchange with the peers")
    predicted, formula = costs.flash_stall(size, COPY, ALPHA, BETA, n), "cS + α + βS; one rank: 2cS"
    rows.time("stall of a save", formula, predicted, clock.now, "derived", tolerance=1e-9)
    return rows.claims()


@contextmanager
def memory() -> Iterator[Path]:
    """A new folder in this node's memory, or where there is no /dev/shm, on its disk."""
    with tempfile.TemporaryDirectory(prefix="minitrain-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as it:
        yield Path(it)


def state(world: World, step: int) -> Tensor:
    """This rank's shard after a step; no two elements of all ranks and steps are alike."""
    first = (step * world.size + world.rank) * ELEMENTS
    return torch.arange(first, first + ELEMENTS, dtype=torch.float64)


def restored(world: World, folder: Path, group: Group) -> int:
    """A new process loads: elements that are not those of step 3, and one more if it says that they are of another."""
    shard = torch.full((ELEMENTS,), torch.nan, dtype=torch.float64)
    step = Flash(folder, shard, RUN, group=group).load(shard)
    return int((shard != state(world, 3)).sum()) + (step != 3)
