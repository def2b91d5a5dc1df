"""The lesson of `minitrain.checkpointing.checkpoint`: a state cut in three ways, and loaded in each."""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.checkpointing.checkpoint import load, save
from minitrain.checkpointing.full.shards import Shard, ShardedTensor, State, flat_shards
from minitrain.comm import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.zero import Partition

WAYS = ("rows", "columns", "line")


def demo(world: World) -> list[Claim]:
    """Saves a state cut by rows and loads it cut as ZeRO does, and in other ways; the table shows equal bits."""
    rows, tensors = Rows("derived"), one_device(world)
    with shared_folder(world) as folder:
        for step, way in enumerate(WAYS):
            path = save(folder / way, step, cut(world, tensors, way), {"step": step})
            assert path is not None
            changed = 0
            for other in WAYS:
                state = cut(world, {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}, other)
                load(path, state)
                changed += unlike(state, tensors)
            what = "elements changed from each of 3 ways of cutting to each"
            rows.add(what, "loaded = saved", 0, changed, "elements", case=f"from {way}", how="compared")
    return rows.claims()


def one_device(world: World) -> dict[str, Tensor]:
    """A matrix, a bias in bfloat16, a state of each, and a scalar, as one device would hold them."""
    tensors = {"optimizer.step": torch.tensor(7.0)}
    generator = torch.Generator().manual_seed(0)
    for kind in ("model", "optimizer.exp_avg"):
        tensors[f"{kind}.matrix"] = torch.randn(193, 47, generator=generator)
        tensors[f"{kind}.bias"] = torch.randn(49, generator=generator).bfloat16()
    return {name: tensor.to(world.device) for name, tensor in tensors.items()}


def cut(world: World, tensors: dict[str, Tensor], way: str) -> State:
    """A rank's state: rows, columns (views with gaps), or its shards of flat lines, as in ZeRO.

    Parameters lie in one line, and their states in another one that is cut alike. A scalar is alike on all ranks.
    """
    state = {name: ShardedTensor(tuple(tensor.shape), tensor.dtype, []) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        dim = 0 if way == "rows" else tensor.dim() - 1
        if not tensor.dim():
            state[name].shards, state[name].writes = [Shard(tensor, ())], world.rank == 0
        elif way != "line":
            parts, offsets = tensor.tensor_split(world.size, dim), [0] * tensor.dim()
            offsets[dim] = sum(part.shape[dim] for part in parts[: world.rank])
            state[name].shards = [Shard(parts[world.rank], tuple(offsets))]
    for kind in ("model", "optimizer.exp_avg") if way == "line" else ():
        shapes = {name: tensor.shape for name, tensor in tensors.items() if name.startswith(kind)}
        for name, start, stop, _ in Partition(shapes, world.size).segments(world.rank):
            state[name].shards = flat_shards(tensors[name].flatten()[start:stop].clone(), tensors[name].shape, start)
    return state


def unlike(state: State, tensors: dict[str, Tensor]) -> int:
    """How many elements of all shards are not those that one device has in their places."""
    count = 0
    for name, sharded in state.items():
        for tensor, offsets in sharded.shards:
            region = tuple(slice(o, o + s) for o, s in zip(offsets, tensor.shape, strict=True))
            count += int((tensor != tensors[name][region]).sum())
    return count
