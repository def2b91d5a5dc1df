"""The optimizer's states as dicts: one rank's, everyone's, and from any of these back onto any number of ranks.

A state of the optimizer is a shard (momentum: one number for each element), or one value for the whole line (a counter
of steps), or so small that every rank keeps all of it, for each parameter by name (Adafactor's).
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


def own(
    optimizer: torch.optim.Optimizer, lines: Sequence[FlatShard], names: Names, rank: int, ranks: int
) -> dict[str, Any]:
    """This rank's states, and what is needed to join them with the others'. Nothing is sent.

    Returns:
        "rank", "ranks", "param_groups" (the options, and names as "params"), and "lines": for each the parameters'
        "shapes" by name, the "state", and the "master" where it is not the parameters' own memory.
    """
    kept = []
    for line in lines:
        if line.master is None:
            continue
        entry: dict[str, Any] = {
            # Shards are joined and cut again by names and shapes, perhaps where there is no model.
            "shapes": dict(line.partition.shapes),
            # Indexing this defaultdict would leave an empty entry where no step has been made.
            "state": dict(optimizer.state.get(line.master, {})),
        }
        # A master of the same dtype equals the parameters, which are saved with the model.
        if line.master.dtype != line.shard.dtype:
            entry["master"] = line.master.detach()
        kept.append(entry)
    return {"rank": rank, "ranks": ranks, "param_groups": _options(optimizer, names), "lines": kept}


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
    return _numbered(state, _options(optimizer, names))


def merge(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole state dict, from those of all ranks, in any order; nothing is sent.

    Raises:
        ValueError: A rank is missing, or there are two of one.
    """
    state, options, _ = _by_name(shards)
    return _numbered(state, options)


def load(
    optimizer: torch.optim.Optimizer,
    lines: Sequence[FlatShard],
    names: Names,
    rank: int,
    ranks: int,
    saved: dict[str, Any] | Sequence[dict[str, Any]],
) -> bool:
    """Load an own state dict, a whole one, or the list of all ranks' own; see `Sharded.load_optimizer_state_dict`.

    Returns:
        Whether it had masters, from which the parameters are then to be made.
    """
    trainable = [line for line in lines if line.master is not None]
    shapes = {name: shape for line in trainable for name, shape in line.partition.shapes.items()}
    masters: dict[str, Tensor] = {}
    for piece in [saved] if isinstance(saved, dict) else saved:
        if "lines" in piece:
            _compare(piece, names, shapes)
        _compare_options(piece["param_groups"], optimizer)
    # As a plain optimizer has it: its numbers count through all groups, and names are ours.
    if isinstance(saved, dict) and "lines" not in saved:
        _compare_groups([len(each["params"]) for each in saved["param_groups"]], list(map(len, names)))
        options = [{**each, "params": its} for each, its in zip(saved["param_groups"], names, strict=True)]
        flat_names = [name for its in names for name in its]
        state = {flat_names[number]: entry for number, entry in saved["state"].items()}
    elif isinstance(saved, dict) and (saved["rank"], saved["ranks"]) == (rank, ranks) and _same(saved, trainable):
        # The same rank of the same layout: nothing to join, so one file per rank is enough.
        return _load_own(optimizer, trainable, saved)
    else:
        state, options, masters = _by_name([saved] if isinstance(saved, dict) else saved)
    kept_whole = getattr(optimizer, "whole_states", ())
    _compare_shapes(state, shapes, kept_whole)
    numbered: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(_in_order(optimizer, trainable)):
        if cut := _cut(state, line, rank, kept_whole):
            numbered[number] = cut
    # Once all states are known to fit, so that a refused load changes nothing.
    for line in trainable:
        if all(name in masters for name in line.parameters):
            assert line.master is not None
            flat = line.partition.flatten({name: masters[name] for name in line.parameters})
            # In place, because the optimizer holds this very tensor.
            line.master.detach().copy_(line.partition.shard(flat, rank))
    optimizer.load_state_dict({"state": numbered, "param_groups": _inner_groups(optimizer, options)})
    return bool(masters)


def gathered(shard: Shaped[Tensor, " shard"], partition: Partition, comm: Comm) -> Shaped[Tensor, " padded"]:
    """A new line with every rank's shard."""
    flat = shard.new_empty(partition.elements + partition.padding)
    partition.shard(flat, comm.rank).copy_(shard)
    if flat.numel():
        # Each rank brings its shard, and all get the whole line.
        comm.all_gather(flat).wait()
    return flat


def _load_own(optimizer: torch.optim.Optimizer, lines: Sequence[FlatShard], saved: dict[str, Any]) -> bool:
    numbers = {id(line): number for number, line in enumerate(_in_order(optimizer, lines))}
    state, masters = {}, False
    for line, entry in zip(lines, saved["lines"], strict=True):
        if entry["state"]:
            # Copies: torch takes tensors over as they are where dtypes fit, and its steps would change the dict.
            state[numbers[id(line)]] = {key: _copy(value) for key, value in entry["state"].items()}
        if "master" in entry and line.master is not None:
            line.master.detach().copy_(entry["master"])
            masters = True
    optimizer.load_state_dict({"state": state, "param_groups": _inner_groups(optimizer, saved["param_groups"])})
    return masters


def _by_name(shards: Sequence[dict[str, Any]]) -> tuple[ByName, list[dict[str, Any]], dict[str, Tensor]]:
    """Join the shards of all ranks: states by parameter, the groups' options, and masters by parameter."""
    ranks = shards[0]["ranks"]
    if sorted(shard["rank"] for shard in shards) != list(range(ranks)):
        listed = ", ".join(f"rank {shard['rank']} of {shard['ranks']}" for shard in shards)
        raise ValueError(f"the state has the shards of {listed}; bring a list with those of all {ranks} ranks")
    state: ByName = {}
    masters: dict[str, Tensor] = {}
    for entries in zip(*(shard["lines"] for shard in sorted(shards, key=lambda each: each["rank"])), strict=True):
        # Cut as the saving run had it, with its number of ranks, which need not be ours.
        partition = Partition(entries[0]["shapes"], ranks)
        found: ByName = {name: {} for name in partition.shapes}
        for key, value in entries[0]["state"].items():
            if _is_shard(value, partition):
                flat = torch.cat([entry["state"][key] for entry in entries])
                _spread(found, key, partition.views(flat))
            elif isinstance(value, dict):
                _spread(found, key, value)
            else:
                for name in found:
                    found[name][key] = _copy(value)
        if "master" in entries[0]:
            masters |= partition.views(torch.cat([entry["master"] for entry in entries]))
        state |= {name: entry for name, entry in found.items() if entry}
    return state, shards[0]["param_groups"], masters


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


def _options(optimizer: torch.optim.Optimizer, names: Names) -> list[dict[str, Any]]:
    return [{**each, "params": list(its)} for each, its in zip(optimizer.param_groups, names, strict=True)]


def _numbered(state: ByName, options: list[dict[str, Any]]) -> dict[str, Any]:
    """Names replaced by torch's numbers: parameters are counted through all groups."""
    numbers = {name: number for number, name in enumerate(name for each in options for name in each["params"])}
    return {
        "state": {number: state[name] for name, number in numbers.items() if name in state},
        "param_groups": [{**each, "params": [numbers[name] for name in each["params"]]} for each in options],
    }


def _in_order(optimizer: torch.optim.Optimizer, lines: Sequence[FlatShard]) -> list[FlatShard]:
    """The lines as the optimizer counts their masters."""
    by_master = {id(line.master): line for line in lines}
    return [by_master[id(master)] for each in optimizer.param_groups for master in each["params"]]


def _inner_groups(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The saved options, on the masters of this optimizer."""
    counts = [len(each["params"]) for each in optimizer.param_groups]
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        {**each, "params": list(range(start, start + count))}
        for each, start, count in zip(options, starts, counts, strict=True)
    ]


def _same(saved: dict[str, Any], lines: Sequence[FlatShard]) -> bool:
    return [list(entry["shapes"].items()) for entry in saved["lines"]] == [
        list(line.partition.shapes.items()) for line in lines
    ]


def _compare(piece: dict[str, Any], names: Names, shapes: dict[str, torch.Size]) -> None:
    """Raise at the first parameter that differs in the saved state."""
    saved_names = [each["params"] for each in piece["param_groups"]]
    _compare_groups(list(map(len, saved_names)), list(map(len, names)), saved_names, names)
    saved_shapes = {name: shape for entry in piece["lines"] for name, shape in entry["shapes"].items()}
    for name, shape in shapes.items():
        if saved_shapes.get(name) != shape:
            had = tuple(saved_shapes[name]) if name in saved_shapes else "missing"
            raise ValueError(f"{name}: {had} in the saved state, {tuple(shape)} here; load it into the same model")


def _compare_groups(
    saved: list[int], here: list[int], saved_names: Names | None = None, names: Names | None = None
) -> None:
    for number, (its, ours) in enumerate(zip(saved_names or [], names or [], strict=False)):
        for one, other in zip(its, ours, strict=False):
            if one != other:
                raise ValueError(f"parameter group {number} has {one} in the saved state where {other} is here")
    if saved != here:
        raise ValueError(f"the saved state has parameter groups of {saved} parameters, here they have {here}")


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
