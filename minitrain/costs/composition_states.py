"""Bytes of parameters, gradients and optimizer states of a rank, by the flat buffers in which ZeRO divides them.

Notation as in `minitrain.costs.composition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from minitrain.costs import optimizers, zero
from minitrain.costs.composition import Parameter

TOGETHER = 25 * 2**20 // 4
"""Elements of layers that travel together: 25 MB in float32, as in a bucket of torch's DDP."""


def lines(parameters: Sequence[Parameter], stage: int, optimizer: str = "adamw") -> list[list[Parameter]]:
    """The flat buffers of a rank's parameters: of each unit the decaying ones, the others, and those of its experts.

    Units are layers, as many together as have `TOGETHER` elements; the embedding, and norm with head, count as layers.
    In stages 2 and 3 of ZeRO each block is a unit, and the rest is one. Matrices that Muon steps are apart.
    """
    found: dict[tuple[int | str, bool, bool, bool], list[Parameter]] = {}
    units: dict[tuple[str, bool], int] = {}  # the unit of each layer; experts have units of their own
    newest = {True: (0, 0), False: (0, 0)}  # its number, and its elements so far
    for each in parameters:
        layer, decays, hidden = _kind(each)
        if stage >= 2 and not layer.startswith("blocks."):
            layer = "root"
        unit: int | str = layer
        if stage < 2:
            number, elements = newest[each.expert]
            if (layer, each.expert) not in units and elements >= TOGETHER:
                number, elements = number + 1, 0
            unit = number = units.setdefault((layer, each.expert), number)
            newest[each.expert] = number, elements + each.elements
        found.setdefault((unit, each.expert, decays, hidden and optimizer == "muon"), []).append(each)
    return list(found.values())


@cache  # a search for a layout asks for the same parameter hundreds of times
def _kind(parameter: Parameter) -> tuple[str, bool, bool]:
    """Its layer, and whether it decays and is a block's matrix."""
    first, second, *_ = parameter.name.split(".")
    rest = "embedding" if first == "embedding" else "end"
    return f"{first}.{second}" if first == "blocks" else rest, parameter.decays, parameter.hidden


def state_bytes(optimizer: str, item: int, line: Sequence[Parameter]) -> tuple[int, int]:
    """Bytes of optimizer states of a flat buffer: for each element, and in all on each rank, whatever it has of it.

    States are in float32 at least; parameters of 16 bits also have a float32 copy. Adafactor's are whole on each rank
    (Rajbhandari et al. 2020, §3.1; Loshchilov & Hutter 2019, algorithm 2).
    """
    copy = 4 if item < 4 else 0
    one = max(4, item)  # bytes of a state's element
    factored = sum(optimizers.adafactor(each.shape or (each.elements,), one) for each in line)
    states = {
        "adamw": (2 * one, 4),
        "lamb": (2 * one, 4),
        "lars": (one, 0),
        "sgd": (0, 0),
        "adafactor": (0, factored + 4),
        "muon": (one, 0) if line[0].hidden else (2 * one, 4),
    }
    size, whole = states[optimizer]
    return size + copy, whole


class Sharing(NamedTuple):
    """How data-parallel ranks share what they hold of a model.

    Attributes:
        stage: Of ZeRO.
        data: Data-parallel ranks, over which states of shared parameters are divided.
        replicas: Ranks that hold the same experts, over which those of experts are divided.
        item: w, bytes of a parameter's element.
        gradient: Bytes of a gradient's element.
        optimizer: "adamw", "sgd", "lamb", "lars", "adafactor" or "muon".
    """

    stage: int
    data: int
    replicas: int
    item: int
    gradient: int
    optimizer: str

    def buffers(self, parameters: Sequence[Parameter]) -> Iterator[tuple[list[Parameter], int, int]]:
        """Each flat buffer, its elements, and over how many ranks it is divided."""
        for line in lines(parameters, self.stage, self.optimizer):
            yield line, sum(each.elements for each in line), self.replicas if line[0].expert else self.data


def model_states(parameters: Sequence[Parameter], sharing: Sharing) -> dict[str, int]:
    """Bytes that a rank holds of "parameters", "gradients" and "optimizer states", as `minitrain.costs.zero.held`."""
    item = sharing.item
    total = {"parameters": 0, "gradients": 0, "optimizer states": 0}
    for line, elements, ranks in sharing.buffers(parameters):
        one = zero.Line(elements, item)  # one step counter for all of its tensors
        states = state_bytes(sharing.optimizer, item, line)
        held = zero.held(sharing.stage, [one], ranks, *states, sharing.gradient)
        total = {name: size + held[name] for name, size in total.items()}
    return total
