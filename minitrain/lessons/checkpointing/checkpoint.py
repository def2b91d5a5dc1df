"""The lesson of `minitrain.checkpointing.checkpoint`: a state cut in four ways, and brought together in all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.checkpointing.checkpoint import load, save
from minitrain.checkpointing.full.shards import Shard, ShardedTensor, State, flat_shards
from minitrain.comm import World
from minitrain.comm.groups import new_group
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.zero import Partition

WAYS = ("alike", "rows", "columns", "line")


def demo(world: World) -> list[Claim]:
    """Saves a state cut by rows and loads it cut as ZeRO does, and in other ways; the table shows equal bits."""
    rows, tensors = Rows("derived"), one_device(world)
    alone = [new_group([rank]) for rank in range(world.size)][world.rank]
    assert isinstance(alone, dist.ProcessGroup)
    with shared_folder(world) as folder:
        for step, way in enumerate(WAYS):
            path = save(folder / way, step, cut(world, tensors, way), {"step": step})
            assert path is not None
            changed = 0
            for other in WAYS:
                state = cut(world, {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}, other)
                load(path, state)
                changed += unlike(state, tensors)
            # One rank brings all parts together again.
            whole = {name: part_of(torch.full_like(tensor, -1), "alike", 0, 1) for name, tensor in tensors.items()}
            load(path, whole, alone)
            changed += unlike(whole, tensors)
            what = "elements changed from each of 4 ways of cutting to each, and loaded by one rank alone"
            rows.add(what, "loaded = saved", 0, changed, "elements", case=f"from {way}", how="compared")
    return rows.claims()


def one_device(world: World) -> dict[str, Tensor]:
    """Two matrices, a bias in bfloat16, AdamW's states and a scalar, as one device would hold them."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"in": (192, 48), "out": (48, 192), "bias": (49,)}
    tensors = {"optimizer.step": torch.tensor(7.0)}
    for kind in ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
        for name, shape in shapes.items():
            dtype = torch.bfloat16 if name == "bias" else torch.float32
            tensors[f"{kind}.{name}"] = torch.randn(shape, generator=generator).to(dtype)
    return {name: tensor.to(world.device) for name, tensor in tensors.items()}


def cut(world: World, tensors: dict[str, Tensor], way: str) -> State:
    """A rank's state: everything alike, rows, columns (views with gaps), or its shards of flat lines, as in ZeRO.

    Parameters lie in one line, and each of their states in another one that is cut alike.
    """
    if way == "line":
        state = {}
        for kind in dict.fromkeys(name.rpartition(".")[0] for name in tensors):
            shapes = {name: tensor.shape for name, tensor in tensors.items() if name.rpartition(".")[0] == kind}
            for name, start, stop, _ in Partition(shapes, world.size).segments(world.rank):
                shards = flat_shards(tensors[name].flatten()[start:stop].clone(), tensors[name].shape, start)
                state[name] = ShardedTensor(tuple(tensors[name].shape), tensors[name].dtype, shards)
        return state
    return {name: part_of(tensor, way, world.rank, world.size) for name, tensor in tensors.items()}


def part_of(tensor: Tensor, way: str, rank: int, ranks: int) -> ShardedTensor:
    sharded = ShardedTensor(tuple(tensor.shape), tensor.dtype, [])
    if way == "alike" or not tensor.dim():
        sharded.shards, sharded.writes = [Shard(tensor, (0,) * tensor.dim())], rank == 0
        return sharded
    dim = 0 if way == "rows" else tensor.dim() - 1
    parts = tensor.tensor_split(ranks, dim)
    offsets = [0] * tensor.dim()
    offsets[dim] = sum(part.shape[dim] for part in parts[:rank])
    sharded.shards = [Shard(parts[rank], tuple(offsets))]
    return sharded


def unlike(state: State, tensors: dict[str, Tensor]) -> int:
    """How many elements of all shards are not those that one device has in their places."""
    count = 0
    for name, sharded in state.items():
        for tensor, offsets in sharded.shards:
            region = tuple(slice(o, o + s) for o, s in zip(offsets, tensor.shape, strict=True))
            count += int((tensor != tensors[name][region]).sum())
    return count
