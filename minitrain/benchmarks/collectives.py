"""The rings of chapter 01 against torch.distributed's own collectives, from 1 KB to 64 MB."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import torch
import torch.distributed as dist

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.collectives.full import native, ring
from minitrain.comm.world import World

KILOBYTE = 1 << 10
SIZES = [KILOBYTE << shift for shift in range(0, 17, 2)]  # 1 KB to 64 MB


def measure(world: World, sizes: list[int] = SIZES, repeats: int | None = None) -> list[Comparison]:
    """Compare all-reduce and reduce-scatter for each size in bytes (of the full tensor, float32)."""
    rows = []
    for size in world.progress(sizes, f"collectives on {world.size} ranks"):
        tensor = torch.zeros(size // 4, device=world.device)
        turns = repeats or (101 if size <= 64 * KILOBYTE else 31)
        for verb in ("all_reduce", "reduce_scatter"):
            # As in a training loop, which calls the same again and again: the ring's buffers stay.
            ours = partial(_call, ring, verb, tensor, buffers=[])
            ways = {"ours": ours, "theirs": partial(_call, native, verb, tensor)}
            medians = interleaved(world, ways, turns)
            what = f"{verb}, {_bytes(size)}, {world.size} ranks"
            against = f"torch.distributed ({dist.get_backend()})"
            target = _target(verb, size, world)
            rows.append(Comparison(what, medians["ours"].wall, medians["theirs"].wall, against, target=target))
    return rows


def _call(collectives: ModuleType, verb: str, tensor: torch.Tensor, **kept: list[torch.Tensor]) -> None:
    getattr(collectives, verb)(tensor, **kept).wait()


def _target(verb: str, size: int, world: World) -> float | None:
    """The ratios to reach, set for gloo on two cores."""
    if world.backend != "gloo" or world.size != 4:
        return None
    if verb == "all_reduce":
        return 1.0 if size >= 4096 * KILOBYTE else None
    return 2.0 if size >= 16384 * KILOBYTE else 1.5 if size >= 1024 * KILOBYTE else None


def _bytes(size: int) -> str:
    return f"{size // KILOBYTE} KB" if size < 1024 * KILOBYTE else f"{size // (1024 * KILOBYTE)} MB"
