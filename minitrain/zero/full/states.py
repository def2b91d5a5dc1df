"""The optimizer's states as a dict: gathered in the form of a plain optimizer over whole parameters, and cut from it.

A state of the optimizer is a shard (momentum: one number for each element), or one value for the whole line (a counter
of steps), or so small that every rank keeps all of it, for each parameter by name (Adafactor's). What each rank saves
by itself: `minitrain.checkpointing.full.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.zero.full.partition import Partition

if TYPE_CHECKING:
    from minitrain.zero.full.flat_shards import FlatShard

Names = list[list[str]]  # for each parameter group its parameters, in order
ByName = dict[str, dict[str, Any]]  # parameter -> its states


def whole(optimizer: torch.optim.Optimizer, lines: Sequence[FlatShard], names: Names, comm: Comm) -> dict[str, Any]:
    """All states, on every rank, in the form of a plain optimizer over the whole parameters."""
    state: ByName = {}
    for line in lines:
        if line.master is None:
            continue
        found: ByName = {name: {} for name in line.parameters}
        # Ranks go through lines and keys in the same order: each shard among them is an all-gather.
        for key, value in optimizer.state.get(line.master, {}).items():
            if _is_shard(value, line.partition):
                here = value.to(line.shard.device)  # the ranks' backend may not reach the host, where offload keeps it
                flat = gathered(here, line.partition, comm).to(value.device)
                _spread(found, key, line.partition.views(flat))
            elif isinstance(value, dict):
                _spread(found, key, value)
            else:
                for name in found:
                    # One counter per line becomes one per parameter. A copy each, since torch counts in place.
                    found[name][key] = _copy(value)
        state |= {name: entry for name, entry in found.items() if entry}
    # Torch's numbers count parameters through all groups.
    numbers = {name: number for number, name in enumerate(name for its in names for name in its)}
    groups = zip(optimizer.param_groups, names, strict=True)
    return {
        "state": {number: state[name] for name, number in numbers.items() if name in state},
        "param_groups": [{**each, "params": [numbers[name] for name in its]} for each, its in groups],
    }


def load(
    optimizer: torch.optim.Optimizer, lines: Sequence[FlatShard], names: Names, rank: int, saved: dict[str, Any]
) -> None:
    """Load what `whole` gave, or the state dict of a plain optimizer: each rank takes its shards. Nothing is sent."""
    trainable = [line for line in lines if line.master is not None]
    shapes = {name: shape for line in trainable for name, shape in line.partition.shapes.items()}
    _compare_options(saved["param_groups"], optimizer)
    sizes, here = [len(each["params"]) for each in saved["param_groups"]], list(map(len, names))
    if sizes != here:
        raise ValueError(f"the saved state has parameter groups of {sizes} parameters, here they have {here}")
    # A plain optimizer's numbers count through all groups, and names are ours.
    flat_names = [name for its in names for name in its]
    state = {flat_names[number]: entry for number, entry in saved["state"].items()}
    kept_whole = getattr(optimizer, "whole_states", ())
    _compare_shapes(state, shapes, kept_whole)
    by_master = {id(line.master): line for line in trainable}
    masters = [master for each in optimizer.param_groups for master in each["params"]]
    # Numbered as the optimizer counts its masters.
    numbered = {number: _cut(state, by_master[id(master)], rank, kept_whole) for number, master in enumerate(masters)}
    ours = optimizer.state_dict()["param_groups"]
    groups = [{**each, "params": its["params"]} for each, its in zip(saved["param_groups"], ours, strict=True)]
    # Last, so that a refused load changes nothing.
    optimizer.load_state_dict({"state": {n: cut for n, cut in numbered.items() if cut}, "param_groups": groups})


def gathered(shard: Shaped[Tensor, " shard"], partition: Partition, comm: Comm) -> Shaped[Tensor, " padded"]:
    """A new line with every rank's shard."""
    flat = shard.new_empty(partition.elements + partition.padding)
    partition.shard(flat, comm.rank).copy_(shard)
    if flat.numel():
        # Each rank brings its shard, and all get the whole line.
        comm.all_gather(flat).wait()
    return flat


def _cut(state: ByName, line: FlatShard, rank: int, kept_whole: Sequence[str]) -> dict[str, Any]:
    """The states of one line's shard, from those of its whole parameters."""
    assert line.master is not None
    shapes, cut = line.partition.shapes, {}
    for key in dict.fromkeys(key for name in shapes for key in state.get(name, {})):
        values = {name: state[name][key] for name in shapes if key in state.get(name, {})}
        if key in kept_whole:
            cut[key] = _copy(values)
            continue
        if _is_elementwise(key, values, shapes):
            # A parameter that the plain optimizer never stepped has no state there; here its states would be zeros.
            example = next(iter(values.values()))
            whole = {name: values.get(name, example.new_zeros(shape)) for name, shape in shapes.items()}
            # A view would keep the whole line in memory, as much as without ZeRO.
            cut[key] = line.partition.shard(line.partition.flatten(whole), rank).clone()
            continue
        first, *others = values.items()
        for name, value in others:
            if value != first[1]:
                raise ValueError(
                    f"{key} of {first[0]} is {first[1]} and that of {name} is {value}, but the parameters of one line "
                    "are stepped together; put them into parameter groups of their own"
                )
        cut[key] = _copy(first[1])
    return cut


def _is_shard(value: Any, partition: Partition) -> bool:
    """Whether a state has one number for each element of the shard; counters have no dimension."""
    return isinstance(value, Tensor) and value.shape == (partition.shard_elements,)


def _is_elementwise(key: str, values: dict[str, Any], shapes: dict[str, torch.Size]) -> bool:
    """Whether a state of whole parameters has one number for each element."""
    if all(isinstance(value, Tensor) and value.shape == shapes[name] for name, value in values.items()):
        # Where all parameters have no dimension, a momentum looks like a counter. These are torch's counters.
        return any(value.dim() for value in values.values()) or key not in ("step", "mu_product", "eta", "mu")
    return False


def _spread(found: ByName, key: str, views: dict[str, Tensor]) -> None:
    for name, view in views.items():
        # Saving one view would save the storage of all of them.
        found[name][key] = view.clone()


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(each) for name, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _compare_options(saved: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Raise where the options are those of another optimizer."""
    scheduled = {"params", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}
    for group in saved:
        extra = sorted(group.keys() - optimizer.defaults.keys() - optimizer.param_groups[0].keys() - scheduled)
        missing = sorted(optimizer.defaults.keys() - group.keys())
        # One alone is no mistake: another version of torch may lack some options, or have more.
        if extra and missing:
            raise ValueError(
                f"the saved state is of another optimizer than {type(optimizer).__name__}: it has {', '.join(extra)}, "
                f"and lacks {', '.join(missing)}; load it into the optimizer that it is of"
            )


def _compare_shapes(state: ByName, shapes: dict[str, torch.Size], kept_whole: Sequence[str]) -> None:
    """Raise at the first state whose shape is not its parameter's."""
    for name, entry in state.items():
        if name not in shapes:
            raise ValueError(f"{name} is frozen here, but has states in the saved one")
        for key, value in entry.items():
            if isinstance(value, Tensor) and value.dim() and key not in kept_whole and value.shape != shapes[name]:
                raise ValueError(
                    f"{key} of {name} has shape {tuple(value.shape)} in the saved state, but the parameter is "
                    f"{tuple(shapes[name])}; load it into the same model"
                )
