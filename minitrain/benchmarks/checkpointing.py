"""What a save stalls the training for: into shared memory and behind its back, against one that it waits for.

A user of `--save-every` alone waits until the checkpoint is on the disk. What a thread still does when the training
goes on is not measured here; it takes its share of the cores.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full.background import Background
from minitrain.checkpointing.full.memory import ROOT, Memory
from minitrain.checkpointing.full.shards import Shard, ShardedTensor
from minitrain.comm.control import gather_objects
from minitrain.comm.world import World


def measure(world: World, elements: int = 1 << 22, repeats: int = 15) -> list[Comparison]:
    """Compare the stalls of the trainer's three ways to save a float32 weight and Adam's two states of it."""
    folder = Path(gather_objects(tempfile.mkdtemp() if world.rank == 0 else "")[0])
    state = {name: _sharded(world, elements) for name in ("weight", "weight.exp_avg", "weight.exp_avg_sq")}
    background, steps = Background(), count(1)
    ways: dict[str, Callable[[], object]] = {
        "whole": lambda: checkpoint.save(folder / "whole", next(steps), state, {}),
        "asynchronous": lambda: background.save(folder / "background", next(steps), state, {}),
    }
    waits = [background.wait]
    memory = Memory(folder, state, {}) if ROOT.is_dir() else None
    if memory:
        ways["flash"] = lambda: memory.save(next(steps), state, {})
        waits.append(memory.wait)
    medians = interleaved(world, ways, repeats, warmups=2, after=lambda: [wait() for wait in waits])
    background.close()
    if memory:
        memory.free()
    if world.rank == 0:
        shutil.rmtree(folder)
    rows, size = [], 12 * elements / 1e6
    for name, target in (("flash", 0.05), ("asynchronous", None)):
        if name in medians:
            what = f"stall of a save, {name}, {size:.0f} MB on each of {world.size} ranks"
            ours, theirs = medians[name].wall, medians["whole"].wall
            rows.append(Comparison(what, ours, theirs, "a save that is waited for", speed=False, target=target))
    return rows


def _sharded(world: World, elements: int) -> ShardedTensor:
    tensor = torch.rand(elements, device=world.device)
    return ShardedTensor((world.size * elements,), tensor.dtype, [Shard(tensor, (world.rank * elements,))])
