"""Parameters side by side in one flat line of memory, as in FSDP's `FlatParameter`, and this rank's shard of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.zero.full.partition import Partition
from minitrain.zero.full.units import unit_of_parameters


class FlatShard:
    """A line of parameters, whose `.data` are views of `flat`, and this rank's shard of it.

    Args:
        parameters: By name, in the order in which they lie; all of one dtype and device, all trainable or all frozen.
        group: The parameter group that they belong to.
        rank: Whose shard this is, within the group of ranks.
        ranks: Number of shards.

    Attributes:
        partition: Where each parameter lies.
        trainable: Whether the optimizer steps it.
        flat: The whole line, padding included. In stage 3 its storage has 0 bytes while it is not needed.
        shard: This rank's part: a view of `flat`, in stage 3 of its own memory.
        master: What the optimizer steps: the shard itself (same memory), or, where parameters are held in fewer bits,
            a copy in float32, taken before they were rounded. None for frozen parameters.
        gradient: This rank's part of the mean gradient, in the parameters' dtype, padding 0. Set by `synchronize()`,
            None again after `zero_grad()`.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], group: int, rank: int, ranks: int):
        self.parameters, self.group, self.rank = parameters, group, rank
        self.partition = Partition({name: p.shape for name, p in parameters.items()}, ranks)
        self.trainable = next(iter(parameters.values())).requires_grad
        self.master: nn.Parameter | None = None
        self.gradient: Tensor | None = None
        # Detached, or autograd would record the copy into the line.
        self.point(self.partition.flatten({name: p.detach() for name, p in parameters.items()}))

    def point(self, flat: Shaped[Tensor, " padded"]) -> None:
        """Make `flat` the line: all parameters become views of it."""
        self.flat = flat
        self.shard = self.partition.shard(flat, self.rank)
        for name, view in self.partition.views(flat).items():
            # `.data`, so that the parameter stays the same object for optimizers, hooks and tied layers.
            self.parameters[name].data = view

    @property
    def whole(self) -> bool:
        """Whether all values are in memory: not where stage 3 has freed them."""
        return self.flat.untyped_storage().nbytes() > 0 or not self.flat.numel()

    def free(self) -> None:
        """Give the memory of `flat` back; `shard` must have memory of its own."""
        # The storage alone: views that autograd has saved stay as they are, and are valid again once it is filled.
        self.flat.untyped_storage().resize_(0)

    def check_in_place(self) -> None:
        """Raise RuntimeError if a parameter is no longer a view of the line: what is gathered would not reach it."""
        here = self.flat.untyped_storage()._cdata  # the storage's own address, which it has even without memory
        for name, parameter in self.parameters.items():
            if parameter.untyped_storage()._cdata != here:
                raise RuntimeError(f"{name} was moved out of its line, as .to(…) and .half() do; wrap it again")

    def allocate(self) -> None:
        """Give `flat` memory again, with undefined values; every view of it is usable again."""
        self.flat.untyped_storage().resize_(self.flat.numel() * self.flat.element_size())


def check_dense(name: str, gradient: Tensor) -> None:
    """Refuse a sparse gradient."""
    if gradient.layout != torch.strided:
        raise ValueError(
            f"the gradient of {name} is sparse ({gradient.layout}), which a flat line cannot hold; "
            "make the embedding with sparse=False, or keep its table on a parameter server"
        )


class Unit:
    """A part of the module whose parameters travel together.

    Attributes:
        name: In the whole module; "root" for the root.
        module: The part; for the root the whole module.
        lines: Its own lines, without those of units inside it. The root may have none.
    """

    def __init__(self, name: str, module: nn.Module):
        self.name, self.module = name, module
        self.lines: list[FlatShard] = []


def lay_out(
    module: nn.Module, parts: Sequence[nn.Module], groups: list[list[str]], rank: int, ranks: int
) -> list[Unit]:
    """The units of `parts`, after the root, with a line for each parameter group, dtype, device, and trainable or not.

    `groups` has the names of the parameters in each parameter group; a frozen parameter may be in none.
    """
    number_of = {name: number for number, names in enumerate(groups) for name in names}
    names = {id(part): name for name, part in module.named_modules()}
    units = [Unit("root", module), *(Unit(names.get(id(part), ""), part) for part in parts)]
    kinds: list[dict[Any, dict[str, nn.Parameter]]] = [{} for _ in units]
    for name, unit in unit_of_parameters(module, parts).items():
        parameter = module.get_parameter(name)
        # A flat tensor has one dtype and device, and the optimizer one set of options for it.
        kind = (number_of.get(name, 0), parameter.dtype, parameter.device, parameter.requires_grad)
        kinds[unit + 1].setdefault(kind, {})[name] = parameter
    for unit, its in zip(units, kinds, strict=True):
        unit.lines = [FlatShard(parameters, kind[0], rank, ranks) for kind, parameters in its.items()]
    return units
