"""The lesson of `minitrain.checkpointing.flash`: processes and nodes die, at every moment of a save, and one restores.

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
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing.flash import Flash
from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group
from minitrain.costs import checkpointing as costs
from minitrain.lessons import Claim
from minitrain.lessons.rows import Rows

GEMINI = "Wang et al. 2023, §4"
RUN = 17  # the number of the training
ALPHA, BETA, COPY = 3.0, 2e-3, 5e-4  # virtual seconds: per message, per byte of it, per byte copied


def demo(world: World, elements: int = 501) -> list[Claim]:
    """Saves into shared memory; the table shows states after dead processes and nodes, bytes, memory and stall.

    Args:
        elements: Of a rank's shard, 8 bytes each.
    """
    # What lies in the CPU's memory is sent from there, which NCCL cannot.
    rows, n, size, group = Rows(GEMINI), world.size, 8 * elements, new_group(range(world.size), backend="gloo")
    node = "elements changed after the last rank's node has died, and the step found"
    for dies, what in (
        ("a process", "elements changed after a process has died, and the step found"),
        ("a node", node),
    ):
        if dies == "a node" and n == 1:
            rows.needs(2, node, "0")
            continue
        with memory() as folder:
            flash = Flash(folder, state(world, 0, elements), RUN, group=group)
            held = sum(file.stat().st_size for file in folder.iterdir())
            with Ledger() as ledger:
                for step in (1, 2, 3):
                    flash.save(step, state(world, step, elements))
            if dies == "a node" and world.rank == n - 1:
                shutil.rmtree(folder)
                folder.mkdir()
            del flash
            step, wrong = restored(world, folder, elements, group)
        rows.add(what, "the newest", 3, step, "1", case="the step", how="compared")
        rows.add(what, "0", 0, wrong, "1", case="wrong elements", how="compared")
        rows.add("bytes of memory", "4S + 64", costs.flash_memory(size), held, "B", "derived", case=dies)
        rows.add("bytes sent in 3 saves", "3S", 3 * size * (n > 1), ledger.sent, case=dies)
    what = "moments of a save whose end leaves neither its state nor the one before"
    rows.add(what, "0", 0, killed_anywhere(world, elements), "moments", "derived", how="compared")
    with memory() as folder:
        flash = Flash(folder, state(world, 0, elements), RUN, group=group)
        with VirtualClock(ALPHA, BETA) as clock, Copies(clock, size):
            flash.save(1, state(world, 1, elements))
    world.draw = lambda: clock.timeline.draw("a save into memory: a copy, and the exchange with the peers")
    predicted, formula = costs.flash_stall(size, COPY, ALPHA, BETA, n), "cS + α + βS; one rank: 2cS"
    rows.time("stall of a save", formula, predicted, clock.now, "derived", tolerance=1e-9)
    return rows.claims()


@contextmanager
def memory() -> Iterator[Path]:
    """A new folder in this node's memory, or where there is no /dev/shm, on its disk."""
    with tempfile.TemporaryDirectory(prefix="minitrain-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as it:
        yield Path(it)


def state(world: World, step: int, elements: int) -> Tensor:
    """This rank's shard after a step; no two elements of all ranks and steps are alike."""
    first = (step * world.size + world.rank) * elements
    return torch.arange(first, first + elements, dtype=torch.float64)


def restored(world: World, folder: Path, elements: int, group: Group) -> tuple[int, int]:
    """A new process loads: the step, and elements that are not those of that step."""
    shard = torch.full((elements,), torch.nan, dtype=torch.float64)
    step = Flash(folder, shard, RUN, group=group).load(shard)
    return step, int((shard != state(world, step, elements)).sum())


class Killed(BaseException):
    """The process has ended here."""


class Dies(TorchDispatchMode):
    """Counts the changes of memory in place, and ends the process before one of them, or in the midst of it."""

    def __init__(self, change: int, half: bool):
        super().__init__()
        self.change, self.half, self.count = change, half, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and func.__name__.split(".")[0] in ("copy_", "fill_"):
            self.count += 1
            if self.count > self.change:
                if self.half and func is torch.ops.aten.copy_.default:
                    middle = args[0].numel() // 2
                    args[0].view(-1)[:middle] = args[1].view(-1)[:middle]
                raise Killed(func.__name__)
        return func(*args, **(kwargs or {}))


def killed_anywhere(world: World, elements: int) -> int:
    """Moments of a save at which a process dies and a wrong state is loaded; each rank is by itself, its own peer."""
    alone: Any = dist.new_group([world.rank], backend="gloo", use_local_synchronization=True)
    lost, change, ended = 0, 0, False
    while not ended:
        for half in (False, True):
            with memory() as folder:
                flash = Flash(folder, state(world, 1, elements), RUN, group=alone)
                for step in (1, 2):
                    flash.save(step, state(world, step, elements))
                try:
                    with Dies(change, half):
                        flash.save(3, state(world, 3, elements))
                    ended = True
                except Killed:
                    pass
                step, wrong = restored(world, folder, elements, alone)
                # And without the state of step 2: what is left of the slot that was being written must not count.
                again = Flash(folder, state(world, 1, elements), RUN, group=alone)
                again.slots[again.heads[:, 3] == 2] ^= 1
                later, mixed = restored(world, folder, elements, alone)
                lost += wrong > 0 or step not in (2, 3) or (later >= 0 and mixed > 0)
        change += 1
    return lost


class Copies(TorchDispatchMode):
    """Lets copies of a shard take virtual time."""

    def __init__(self, clock: VirtualClock, size: int):
        super().__init__()
        self.clock, self.size = clock, size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].nbytes == self.size:
            self.clock.work(COPY * self.size, "copy")
        return func(*args, **(kwargs or {}))
