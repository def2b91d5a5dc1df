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
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group
from minitrain.costs import checkpointing as costs
from minitrain.lessons.checkpointing.disk import Killed
from minitrain.lessons.claims import Claim, fold

GEMINI = "Wang et al. 2023, §4"
RUN = 17  # the number of the training
ALPHA, BETA, COPY = 3.0, 2e-3, 5e-4  # virtual seconds: per message, per byte of it, per byte copied


@contextmanager
def memory() -> Iterator[Path]:
    """A new folder in this node's memory, or where there is no /dev/shm, on its disk."""
    with tempfile.TemporaryDirectory(prefix="minitrain-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as it:
        yield Path(it)


def state(world: World, step: int, elements: int) -> Tensor:
    """This rank's shard after a step; no two elements of all ranks and steps are alike."""
    first = (step * world.size + world.rank) * elements
    return torch.arange(first, first + elements, dtype=torch.float64)


def restored(world: World, folder: Path, elements: int, group: Group) -> tuple[int, int, int]:
    """A new process loads: the step, elements that are not those of that step, and bytes that it has sent."""
    shard = torch.full((elements,), torch.nan, dtype=torch.float64)
    with Ledger() as ledger:
        step = Flash(folder, shard, RUN, group=group).load(shard)
    return step, int((shard != state(world, step, elements)).sum()), ledger.sent


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


def killed_anywhere(world: World, elements: int) -> list[Claim]:
    """Claims on a process that dies at each moment of a save; each rank is by itself, and its own peer."""
    alone: Any = dist.new_group([world.rank], backend="gloo", use_local_synchronization=True)
    lost, newer, never = 0, 0, 0
    change, ended = 0, False
    while not ended:
        for half in (False, True):
            with memory() as folder:
                shard = state(world, 1, elements)
                flash = Flash(folder, shard, RUN, group=alone)
                for step in (1, 2):
                    flash.save(step, state(world, step, elements))
                mode = Dies(change, half)
                try:
                    with mode:
                        flash.save(3, state(world, 3, elements))
                    ended = True
                except Killed:
                    pass
                step, wrong, _ = restored(world, folder, elements, alone)
                lost += wrong > 0 or step not in (2, 3)
                newer += step == 3
                # And without the state of step 2: what is left of the slot that was being written must not count.
                again = Flash(folder, shard, RUN, group=alone)
                again.slots[again.heads[:, 3] == 2] ^= 1
                step, wrong, _ = restored(world, folder, elements, alone)
                never += step >= 0 and wrong > 0
        change += 1
    what = "moments of a save whose end leaves neither its state nor the one before"
    return [
        Claim(what, "0", 0, lost, "moments", "derived", "compared", key=True),
        Claim("moments whose end leaves the new state: only after the last change", "2", 2, newer, "moments", "derived",
              "compared"),
        Claim("moments after which a state is loaded that no step has had, where the state before is damaged", "0", 0,
              never, "moments", "derived", "compared"),
    ]  # fmt: skip


def one_step_apart(world: World, elements: int, group: Group) -> Claim:
    """The claim on ranks that a failure has caught before and after the end of a save."""
    with memory() as folder:
        flash = Flash(folder, state(world, 0, elements), RUN, group=group)
        for step in (1, 2):
            flash.save(step, state(world, step, elements))
        if world.rank < 2:
            flash.heads[flash.heads[:, 3] == 2, 3] = -1  # it died before it had written the last number
        gather_objects(None)
        step, wrong, _ = restored(world, folder, elements, group)
        again = Flash(folder, state(world, 0, elements), RUN, group=group)
        # The state of step 2 is given up by all, so that nobody finds it once more.
        later = int((again.heads[:, 3] > step).sum())
    cases = {
        "the step": Claim("", "1", 1, step, source="derived", how="compared"),
        "wrong elements": Claim("", "0", 0, wrong, source="derived", how="compared"),
        "later steps": Claim("", "0", 0, later, source="derived", how="compared"),
    }
    return fold("the step that all load where rank 0 and its peer died in the save of step 2", cases)


def process_and_node(world: World, elements: int, group: Group) -> list[Claim]:
    """Claims on states after a process, and after a node."""
    size = 8 * elements
    with memory() as folder:
        shard = state(world, 0, elements)
        flash, ledger = Flash(folder, shard, RUN, group=group), Ledger()
        held = sum(file.stat().st_size for file in folder.iterdir())
        for step in (1, 2, 3):
            with ledger:
                flash.save(step, state(world, step, elements))
        del flash
        step, wrong, sent = restored(world, folder, elements, group)
        process = {
            "the step": Claim("", "the newest", 3, step, source=GEMINI, how="compared"),
            "wrong elements": Claim("", "0", 0, wrong, source=GEMINI, how="compared"),
            "bytes": Claim("", "0", 0, sent, source=GEMINI, how="compared"),
        }
        # Another training finds nothing, and takes the memory over.
        before = {file: file.stat().st_ino for file in folder.glob("*.slots")}
        stale = Flash(folder, shard, RUN + 1, group=group).load(shard)
        freed = sum(file.stat().st_ino != number for file, number in before.items())
        claims = [
            fold("elements changed after a process has died, and the step found", process, key=True),
            Claim("bytes of memory", "4S + 64", costs.flash_memory(size), held, "B", "derived", key=True),
            Claim("bytes sent in 3 saves", "3S", 3 * size * (world.size > 1), ledger.sent, "B", GEMINI, key=True),
            fold("memory of another training: states found, and files kept", {
                "states": Claim("", "none", -1, stale, source="derived", how="compared"),
                "files": Claim("", "0", 0, 1 - freed, source="derived", how="compared"),
            }),
        ]  # fmt: skip
    text = "elements changed after the last rank's node has died, and the step found"
    sending = "bytes that this load sends: the peer sends one shard"
    if world.size == 1:
        return [
            *claims,
            Claim.needs_ranks(2, text, "0", GEMINI, key=True),
            Claim.needs_ranks(2, sending, "S or 0", GEMINI),
        ]
    with memory() as folder:
        flash = Flash(folder, shard, RUN, group=group)
        for step in (1, 2, 3):
            flash.save(step, state(world, step, elements))
        last = world.rank == world.size - 1
        if last:
            shutil.rmtree(folder)
            folder.mkdir()
        step, wrong, sent = restored(world, folder, elements, group)
    node = {
        "the step": Claim("", "the newest", 3, step, source=GEMINI, how="compared"),
        "wrong elements": Claim("", "0", 0, wrong, source=GEMINI, how="compared"),
    }
    peer = world.rank == 0  # the rank to the right of the last one
    return [
        *claims,
        fold(text, node, key=True),
        Claim(sending, "S or 0", size * peer, sent, "B", GEMINI),
    ]


def stall(world: World, elements: int, group: Group) -> Claim:
    """The claim on the virtual time of a save: a copy, and the exchange with the peers."""

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.copy_.default and args[0].nbytes == 8 * elements:
                clock.work(COPY * args[0].nbytes, "copy")
            return func(*args, **(kwargs or {}))

    with memory() as folder:
        flash = Flash(folder, state(world, 0, elements), RUN, group=group)
        with VirtualClock(ALPHA, BETA) as clock, Copies():
            flash.save(1, state(world, 1, elements))
        took = clock.now
        world.draw = lambda: clock.timeline.draw("a save into memory: a copy, and the exchange with the peers")
    predicted = costs.flash_stall(8 * elements, COPY, ALPHA, BETA, world.size)
    formula = "cS + α + βS; one rank: 2cS"
    return Claim("stall of a save", formula, predicted, took, "virtual s", "derived", "virtual clock", tolerance=1e-9)


def demo(world: World, elements: int = 501) -> list[Claim]:
    """Saves into shared memory; the table shows states after dead processes and nodes, bytes, memory and stall.

    Args:
        elements: Of a rank's shard, 8 bytes each.
    """
    # What lies in the CPU's memory is sent from there, which NCCL cannot.
    group = new_group(range(world.size), backend="gloo")
    claims = [
        *process_and_node(world, elements, group),
        *killed_anywhere(world, elements),
        one_step_apart(world, elements, group),
        stall(world, elements, group),
    ]
    with memory() as folder:
        shard = torch.zeros(1_250_000, dtype=torch.float64)
        flash = Flash(folder, shard, RUN, group=group)
        flash.save(1, shard)
        with world.timed("a save of 10 MB, with a copy for the peer"):
            flash.save(2, shard)
    return claims
