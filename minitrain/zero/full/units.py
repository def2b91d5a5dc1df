"""Which parameters travel together: the units of a module, and the unit that each parameter belongs to.

A unit is a part of the module, such as one block of a GPT, whose parameters and gradients are sent as one line. Stage 2
frees a unit's gradients, and stage 3 its parameters, when that part is done: small units save memory, large units save
messages. Parameters outside all units belong to the root.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def default_units(module: nn.Module) -> list[nn.Module]:
    """The elements of every outermost `nn.ModuleList` or `nn.Sequential` in `module`, those with parameters."""
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        elements = {id(element): element for element in module.children()}  # a repeated one counts once
        # Not looked into any further: blocks inside a block travel with it.
        return [element for element in elements.values() if next(element.parameters(), None) is not None]
    found = {id(unit): unit for child in module.children() for unit in default_units(child)}
    return list(found.values())


def unit_of_parameters(module: nn.Module, units: Sequence[nn.Module]) -> dict[str, int]:
    """For each parameter, by name, the number of its unit in `units`; −1 where it is the root's.

    It is the innermost unit that contains the parameter under all of its names, if there is one.

    Raises:
        ValueError: A unit is no part of `module`.
    """
    numbers = {id(unit): number for number, unit in enumerate(units)}
    paths: dict[str, int] = {}  # every path that leads to a unit
    # By all of its paths, because a module may be used in two places.
    for path, part in module.named_modules(remove_duplicate=False):
        if id(part) in numbers and part is not module:
            paths[path] = numbers[id(part)]
    for number, unit in enumerate(units):
        if unit is not module and number not in paths.values():
            raise ValueError(f"units[{number}], a {type(unit).__name__}, is no part of `module`; name its own parts")
    chains: dict[int, list[list[int]]] = {}  # parameter -> for each of its names, the units around it, outermost first
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        steps = name.split(".")[:-1]
        around = [".".join(steps[: depth + 1]) for depth in range(len(steps))]
        chains.setdefault(id(parameter), []).append([paths[path] for path in around if path in paths])
        names.setdefault(id(parameter), name)
    found = {}
    for key, (first, *others) in chains.items():
        # A tied weight must be in memory whichever module uses it, so its unit has to contain both.
        common = [number for number in first if all(number in other for other in others)]
        found[names[key]] = common[-1] if common else -1
    return found
