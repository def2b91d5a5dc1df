"""A training's whole state as one device has it, and this rank's shards of it: what checkpoints write and read.

Parameters are those that the optimizer steps, in full precision, and are stored with its states: each is a shard of a
line (chapter 04) of a piece (chapter 08) of a layer on some rank (chapter 11). Here each element gets its place in the
tensor of one device, under its name there. With these, no knowledge of the layout is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from minitrain.checkpointing.full.shards import Shard, ShardedTensor, State, flat_regions
from minitrain.comm.control import gather_objects
from minitrain.composition.gradients import Gradients
from minitrain.composition.model import Part
from minitrain.tensor_parallel.full.parameter_layout import sharded_dim, shards
from minitrain.zero.full.flat_shards import FlatShard
from minitrain.zero.full.sharded import Sharded


def state_of(part: Part, gradients: Gradients) -> State:
    """This rank's part of the state: "model.<name>" and, for each of the optimizer's, "optimizer.<state>.<name>".

    "model.<name>" is a parameter, or the bias by which a router balances its experts.

    The shards are the training's own memory: to be written from, or read into and then announced by `refresh`.
    """
    gradients.wait()  # a shard is part of what may still be on its way
    # Before the first step an optimizer has none, into which states could be read.
    make_states(gradients.shards)
    state: State = {}
    for shard in gradients.shards:
        for line in shard.lines:
            if line.master is None:
                continue
            kept = {"model": line.master.detach()}
            for name, value in shard.optimizer.state[line.master].items():
                # Counters have another shape; `set_steps` sets them after loading.
                if isinstance(value, Tensor) and value.shape == line.master.shape:
                    kept[f"optimizer.{name}"] = value
            _add(state, part, gradients, line, kept)
            for kind, of_each in shard.optimizer.state[line.master].items():
                if isinstance(of_each, dict):
                    _add_whole(state, f"optimizer.{kind}", part, gradients, line, of_each)
    place = gradients.axes.place
    for name, router in gradients.routers.items():
        # A bias is the same on all ranks that have its layer, and the first of them writes it.
        bias, writes = router.bias, place["tp"] == place["dp·cp"] == 0
        state[f"model.{name}.bias"] = ShardedTensor(tuple(bias.shape), bias.dtype, [Shard(bias, (0,))], writes)
    return state


def check_finite(state: State, where: Path | str, instead: str) -> None:
    """Refuse what a checkpoint held, on all ranks alike, if there is a NaN or an infinite number in it.

    The ValueError names the states, where they were found, and how to go on without them (`instead`).
    """
    # A rank may be the only one that holds the NaN, and all have to refuse.
    mine = [name for name, each in state.items() if not all(bool(s.tensor.isfinite().all()) for s in each.shards)]
    if found := sorted({name for names in gather_objects(mine) for name in names}):
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ValueError(f"{where}: NaN or infinite numbers in {', '.join(found[:3])}{more}; {instead}")


def _add(state: State, part: Part, gradients: Gradients, line: FlatShard, kept: dict[str, Tensor]) -> None:
    names = {id(parameter): name for name, parameter in part.parameters.items()}
    for local, start, stop, offset in line.partition.segments(line.rank):
        parameter = line.parameters[local]
        name, local_shape = names[id(parameter)], line.partition.shapes[local]
        whole = part.shapes[name]
        origin = [0] * len(whole)
        tensor = gradients.axes.layout.tp
        if (dim := sharded_dim(parameter)) is not None:
            # Neighbors may share a piece, and then begin at the same row.
            origin[dim] = gradients.axes.place["tp"] * shards(parameter, tensor) // tensor * local_shape[dim]
        for kind, flat in kept.items():
            # Of the ranks that hold the same elements the first one writes.
            entry = ShardedTensor(tuple(whole), flat.dtype, [], gradients.spread[name].first)
            done = offset
            for offsets, sizes in flat_regions(local_shape, start, stop):
                region = flat[done : done + math.prod(sizes)].view(sizes)
                done += math.prod(sizes)
                place = tuple(a + b for a, b in zip(origin, offsets, strict=True))
                # The vocabulary may be padded: rows beyond the whole tensor belong to no rank.
                real = [max(0, min(size, end - at)) for size, end, at in zip(sizes, whole, place, strict=True)]
                if all(real):
                    entry.shards.append(Shard(region[tuple(slice(size) for size in real)], place))
            state[f"{kind}.{name}"] = entry


def _add_whole(
    state: State, kind: str, part: Part, gradients: Gradients, line: FlatShard, values: dict[str, Tensor]
) -> None:
    """States of which every rank that shares a line has all; the first of them writes."""
    names = {id(parameter): name for name, parameter in part.parameters.items()}
    for local, value in values.items():
        name = names[id(line.parameters[local])]
        writes = gradients.spread[name].first and line.rank == 0
        whole = Shard(value, (0,) * value.dim())
        state[f"{kind}.{name}"] = ShardedTensor(tuple(value.shape), value.dtype, [whole], writes)


@torch.no_grad()
def make_states(stages: Iterable[Sharded]) -> None:
    """Have each optimizer create its states, all zero, which it otherwise does in its first step."""
    for shard in stages:
        missing = [line for line in shard.lines if line.master is not None and line.master not in shard.optimizer.state]
        if not missing:
            continue
        kept = [(group, group["lr"], group["weight_decay"]) for group in shard.optimizer.param_groups]
        for group, _, _ in kept:
            group["lr"] = group["weight_decay"] = 0.0  # a step that changes nothing
        for line in missing:
            assert line.master is not None
            line.master.grad = torch.zeros_like(line.master)
        shard.optimizer.step()
        for line in missing:
            assert line.master is not None
            line.master.grad = None
        for group, lr, weight_decay in kept:
            group["lr"], group["weight_decay"] = lr, weight_decay
        # The step that made the states has counted itself.
        _count(shard, 0)


def set_steps(gradients: Gradients, steps: int) -> None:
    """Set what the optimizers count: the steps done, which Adam's bias correction needs."""
    for shard in gradients.shards:
        _count(shard, steps)


def _count(stage: Sharded, steps: int) -> None:
    for state in stage.optimizer.state.values():
        if "step" in state:
            state["step"].fill_(steps)


def refresh(gradients: Gradients) -> None:
    """After shards were read into: give every rank the parameters that belong to them."""
    for shard in gradients.shards:
        shard.restore()
