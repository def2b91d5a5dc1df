"""The checks before a module is sharded: ranks ask for the same settings, and parameter groups are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.control import gather_objects

Groups = Sequence[Mapping[str, Any]]


def listed(module: nn.Module, parameter_groups: Groups | None) -> list[dict[str, Any]]:
    """The parameter groups, each with a list of parameters."""
    if parameter_groups is None:
        return [{"params": list(module.parameters())}]
    groups = []
    for each in parameter_groups:
        # A list, since a generator would be empty after the first of several checks.
        parameters = each["params"]
        groups.append({**each, "params": [parameters] if isinstance(parameters, Tensor) else list(parameters)})
    return groups


def check_groups(module: nn.Module, groups: Groups) -> None:
    """Refuse groups that do not hold each trainable parameter once."""
    # By identity: `==` and `in` would compare elements.
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    seen: set[int] = set()
    for number, each in enumerate(groups):
        for parameter in each["params"]:
            if id(parameter) not in names:
                raise ValueError(
                    f"parameter_groups[{number}] holds a {type(parameter).__name__} that is no parameter of `module`"
                )
            if id(parameter) in seen:
                raise ValueError(f"parameter_groups[{number}]: {names[id(parameter)]} is listed twice")
            seen.add(id(parameter))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in seen:
            raise ValueError(f"parameter_groups: {name} is in none of them; add it, or freeze it")


def names_of(named: Iterable[tuple[str, Any]], wanted: Sequence[Any]) -> list[str]:
    """The names of some modules or parameters, by identity."""
    names = {id(part): name for name, part in named}
    return [names.get(id(part), "elsewhere") for part in wanted]


def described(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as ranks compare them: numbers by value, objects by type."""
    plain = (bool, int, float, str, tuple, list, Tensor, type(None))
    # An object's own text may hold its address, which differs between ranks.
    return {
        name: str(value if isinstance(value, plain) else type(value).__name__)
        for name, value in options.items()
        if name != "params"
    }


def agree_on_settings(settings: dict[str, str], group: dist.ProcessGroup | None) -> None:
    """Raise on every rank alike where settings differ."""
    # Everyone gets everyone's, so that all ranks raise together, and none is left waiting in the next message.
    everyone = gather_objects(settings, group)
    for name, value in settings.items():
        if any(theirs[name] != value for theirs in everyone):
            listed = "; ".join(f"rank {rank}: {theirs[name]}" for rank, theirs in enumerate(everyone))
            raise ValueError(f"{name} differs between ranks: {listed}; use the same on all")
