"""The report on every parameter of a model that was divided over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from minitrain.tensor_parallel.full.parameter_layout import copies, is_partial, sharded_dim, shards

REPLICATED = "replicated"


@dataclass(frozen=True)
class Row:
    """A parameter before and after."""

    name: str  # the same before and after
    how: str  # its layout over the ranks, in words
    before: tuple[int, ...]  # its shape on one device
    now: tuple[int, ...]  # its shape on this rank


@dataclass(frozen=True)
class Replaced:
    """The changes to a model; printed, it lists every parameter."""

    parameters: list[Row]
    modules: dict[str, str]  # every module that was replaced, by name, with its class now

    @property
    def replicated(self) -> list[str]:
        """Names of the parameters that every rank holds in full."""
        return [row.name for row in self.parameters if row.how.startswith(REPLICATED)]

    def __str__(self) -> str:
        """A line for each parameter; parameters that are alike in all layers share one."""
        layers: dict[Row, list[int]] = {}
        for row in self.parameters:
            head, _, rest = row.name.partition("blocks.")
            number, _, name = rest.partition(".")
            key = replace(row, name=f"{head}blocks.#.{name}") if rest else row
            layers.setdefault(key, []).append(int(number or 0))
        lines = [("parameter", "on one device", "on this rank", "how")]
        for row, numbers in layers.items():
            those = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
            lines.append((row.name.replace("#", those), _shape(row.before), _shape(row.now), row.how))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


class Before:
    """A model before parts of it are replaced; `replaced` then reports the changes."""

    def __init__(self, model: nn.Module):
        # No tensors, which would keep the replaced weights in memory.
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self.classes = {name: type(module) for name, module in model.named_modules()}

    def replaced(self, model: nn.Module, ranks: int) -> Replaced:
        """Every parameter, and every module of another class than before."""
        rows = [Row(name, _how(p, ranks), self.shapes[name], tuple(p.shape)) for name, p in model.named_parameters()]
        changed = {n: type(m).__name__ for n, m in model.named_modules() if self.classes.get(n) is not type(m)}
        return Replaced(rows, changed)


def _how(parameter: Tensor, ranks: int) -> str:
    dim = sharded_dim(parameter)
    partial = ", gradients to be summed" if is_partial(parameter) else ""
    # A single key and value head is cut into one piece, which every rank has.
    if dim is None or shards(parameter, ranks) == 1:
        return f"{REPLICATED}{partial}"
    held = copies(parameter, ranks)
    shared = f", each on {held} ranks" if held > 1 else ""
    return f"dim {dim} in {shards(parameter, ranks)}{shared}{partial}"


def _shape(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes))
