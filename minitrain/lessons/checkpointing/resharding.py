"""The lesson of `minitrain.checkpointing.resharding`: what its demo claims, and how that is measured."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing.resharding import load, save
from minitrain.comm import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder

CUTS = ("rows", "columns", "replicas")


def demo(world: World) -> list[Claim]:
    """Saves a matrix by rows, columns and replicas, and loads each in all; the table shows bits and bytes read."""
    rows, n, generator = Rows("derived"), world.size, torch.Generator().manual_seed(0)
    tensor = torch.randn(50, 101, generator=generator).to(world.device)  # the same on all ranks
    with shared_folder(world) as folder:
        read = size = 0
        for way in CUTS:
            save(folder / way, *cut(tensor, way, world.rank, n))
        for way, other in itertools.product(CUTS, CUTS):
            changed, got, held = loaded(folder / way, tensor, other, world.rank, n)
            read, size = read + got, size + held
            # The same by fewer and by more ranks; this rank plays some of them.
            for ranks in (1, n + 1):
                for part in range(world.rank, ranks, n):
                    changed += loaded(folder / way, tensor, other, part, ranks)[0]
            what = "small form: elements changed between saving and loading in 3 cuts, also by 1 rank and by n + 1"
            rows.add(what, "loaded = saved", 0, changed, "elements", case=f"{way} to {other}", how="compared")
        rows.add("small form: bytes that this rank reads in the nine loads", "Σ of its nine shards", size, read)
    return rows.claims()


class Read(TorchDispatchMode):
    """Counts the bytes that are copied into one tensor, or into a view of it, while it is open."""

    def __init__(self, into: Tensor):
        super().__init__()
        self.bytes, self._memory = 0, into.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].untyped_storage().data_ptr() == self._memory:
            self.bytes += args[1].nbytes
        return func(*args, **(kwargs or {}))


def cut(tensor: Tensor, way: str, part: int, parts: int) -> tuple[Tensor, tuple[int, int]]:
    """One of `parts` shards, a view, and where it begins in the unsharded tensor."""
    if way == "replicas":
        return tensor, (0, 0)
    dim = CUTS.index(way)
    shards = tensor.tensor_split(parts, dim)
    offset = sum(shard.shape[dim] for shard in shards[:part])
    return shards[part], (offset, 0) if dim == 0 else (0, offset)


def loaded(folder: Path, tensor: Tensor, way: str, part: int, parts: int) -> tuple[int, int, int]:
    """Load a shard. Elements that are not those of `tensor`, bytes read, and bytes of the shard."""
    expected, offsets = cut(tensor, way, part, parts)
    shard = torch.full(expected.shape, torch.nan, device=tensor.device)
    with Read(shard) as read:
        load(folder, shard, offsets)
    return int((shard != expected).sum()), read.bytes, shard.nbytes
