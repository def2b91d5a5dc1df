"""The command line of the memory calculator: `python -m minitrain.costs.memory --parameters 7.5e9 --ranks 64`.

It prints values of the formulas in `minitrain.costs.zero`, `minitrain.costs.memory` and `minitrain.costs.activations`.
Nothing is measured, and torch is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from typing import Annotated, NamedTuple

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.costs import activations, memory, zero
from minitrain.costs.activations import Shape
from minitrain.costs.memory import GB, GPUS, ROOM

GIB = 2**30
BATCH, VOCABULARY = 1, 51200  # the vocabulary of Korthikanti et al. 2022, §6

NOTES = (
    "GB are 10⁹ bytes, GiB 2³⁰. A GPU of 80 GB counts as 80 · 10⁹ bytes, and what fits leaves {room:.3g} % of it free "
    "(--room) for what is not counted: CUDA's context and kernels, half a GB to one; NCCL's buffers, some hundred MB; "
    "the layers that stage 3 has gathered, buckets of gradients, gradients of activations, and what a kernel or a step "
    "needs while it runs (torch's AdamW on a GPU up to a copy of what a rank steps); and what the allocator loses to "
    "fragmentation, some per cent. Where these are large, leave more."
)
ACTIVATIONS = (
    "16 bits an element, dropout, attention written out. A fused attention kernel keeps what selective recomputation "
    "keeps. The peak has what is computed again while backward is in one layer."
)

# The name of a way to split a layer: tensor-parallel ranks, and whether there is sequence parallelism.
Splits = dict[str, tuple[int, bool]]


class Bytes(NamedTuple):
    """Bytes of model states for each parameter; the names are those of the options."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


class Gpus(NamedTuple):
    """The sizes of GPUs in GB, the smallest first, and the part of each that stays free."""

    sizes: tuple[float, ...]
    room: float

    def fitting(self, size: float) -> list[float]:
        """Those on which so many bytes fit."""
        return memory.fitting(size, *self)


def splits(tensor: int) -> Splits:
    """The ways to split a layer that the tables compare."""
    ways = {"not split": (1, False)}
    if tensor > 1:
        ways |= {f"tensor {tensor}": (tensor, False), f"tensor {tensor} + sequence": (tensor, True)}
    return ways


def stages(ranks: int) -> dict[str, int]:
    """The stages of ZeRO to show: name, and one of them. On one data-parallel rank all are the same."""
    return {str(stage): stage for stage in zero.STAGES} if ranks > 1 else {"any": 0}


def states_table(parameters: float, ranks: int, each: Bytes, gpus: Gpus) -> Table:
    """Model states by stage of ZeRO and category, and the GPUs on which they fit."""
    categories = [f"{name}\nGB" for name in zero.state_bytes(0, parameters, ranks, *each)]
    table = table_of(["stage", *categories, "together\nGB", "\nGiB", "fits on\nGB"])
    for name, stage in stages(ranks).items():
        held = zero.state_bytes(stage, parameters, ranks, *each)
        total = sum(held.values())
        fitting = ", ".join(f"{gpu:g}" for gpu in gpus.fitting(total))
        table.add_row(name, *map(gb, held.values()), gb(total), _gib(total), fitting or "none")
    return table


def largest_table(ranks: int, each: Bytes, gpus: Gpus) -> Table:
    """The largest model whose states fit, by stage and GPU, in billions of parameters."""
    table = table_of(["stage", *[f"{gpu:g} GB" for gpu in gpus.sizes]])
    for name, stage in stages(ranks).items():
        one = sum(zero.state_bytes(stage, 1, ranks, *each).values())
        table.add_row(name, *[f"{(1 - gpus.room) * gpu * GB / one / 1e9:,.1f}" for gpu in gpus.sizes])
    return table


def activations_table(shape: Shape, ways: Splits) -> Table:
    """Activations on a rank: what a layer keeps, what the model keeps, and the peak, by split and recomputation."""
    table = table_of(["split", "recomputed", "a layer\nsbh", "\nGB", "model\nGB", "peak\nGB", "\nGiB"])
    unit = shape.batch * shape.seq * shape.hidden
    for name, way in ways.items():
        for recompute in activations.RECOMPUTE:
            layer = activations.layer(*shape[:4], *way, recompute)
            model = activations.model(shape, *way, recompute)
            peak = activations.peak(shape, *way, recompute)
            cells = [f"{layer / unit:,.2f}", gb(layer), gb(model), gb(peak), _gib(peak)]
            table.add_row(name, recompute, *cells, end_section=recompute == activations.RECOMPUTE[-1])
    return table


def totals_table(
    shape: Shape, parameters: dict[str, float], ways: Splits, ranks: int, each: Bytes, gpus: Gpus
) -> Table:
    """Model states and the peak of activations together, by stage, recomputation and split."""
    table = table_of(
        ["stage", "recomputed", *[column for name in ways for column in (f"{name}\nGB", "\nGiB", "\nGPU")]]
    )
    for label, stage in stages(ranks).items():
        for recompute in activations.RECOMPUTE:
            cells = []
            for name, way in ways.items():
                states = zero.state_bytes(stage, parameters[name], ranks, *each)
                total = sum(states.values()) + activations.peak(shape, *way, recompute)
                cells += [gb(total), _gib(total), next((f"{gpu:g}" for gpu in gpus.fitting(total)), "–")]
            table.add_row(label, recompute, *cells, end_section=recompute == activations.RECOMPUTE[-1])
    return table


def calculate(
    parameters: Annotated[float | None, tyro.conf.arg(metavar="NUMBER")] = None,
    ranks: int = 1,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
    layers: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    hidden: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    heads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    seq: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    batch: int = BATCH,
    vocabulary: int = VOCABULARY,
    tensor: int = 1,
    gpus: Annotated[tuple[float, ...], tyro.conf.arg(metavar="NUMBER")] = GPUS,
    room: Annotated[float, tyro.conf.arg(metavar="NUMBER")] = ROOM,
) -> None:
    """What each GPU holds in training: model states by stage of ZeRO and, given a model's shape, activations.

    `--parameters 7.5e9 --ranks 64` prints Figure 1 of the ZeRO paper. A shape takes --layers, --hidden, --heads and
    --seq; the model is then a GPT-2 with tied embeddings, and keeps activations in 16 bits and with dropout.

    Args:
        parameters: Number of parameters, such as 7.5e9. Counted from the shape if not given.
        ranks: Number of data-parallel ranks, over which ZeRO divides. There are ranks x tensor GPUs.
        parameter_bytes: Bytes of a parameter: 2 in mixed precision, 4 in float32.
        gradient_bytes: Bytes of a gradient's element: 2 in mixed precision, 4 in float32.
        optimizer_bytes: Bytes of optimizer states for each parameter: 12 for Adam in mixed precision (a copy of the
            parameter, momentum and variance, 32 bits each), 8 for Adam in float32.
        layers: Number of layers.
        hidden: Width of the residual stream, in elements.
        heads: Number of attention heads of a layer.
        seq: Length of a sequence, in tokens.
        batch: Number of sequences that go through a rank at once (a micro-batch).
        vocabulary: Number of different tokens.
        tensor: Number of tensor-parallel ranks, over which each layer is split.
        gpus: Sizes of the GPUs to choose from, in GB; one or more.
        room: Part of a GPU that stays free for what is not counted, which the last lines of the output list.

    Raises:
        ValueError: The options make no model, or one that cannot be split so, or no GPUs.
    """
    if not gpus or min(gpus) <= 0:
        raise ValueError(f"gpus={gpus} must be sizes above 0, in GB; for example --gpus 40 80")
    if not 0 <= room < 1:
        raise ValueError(f"room={room:g} must be at least 0 and less than 1; 0.1 leaves a tenth of each GPU free")
    choice = Gpus(tuple(sorted(gpus)), room)
    each, ways = Bytes(parameter_bytes, gradient_bytes, optimizer_bytes), splits(tensor)
    _check(parameters, each, {"ranks": ranks, "batch": batch, "vocabulary": vocabulary, "tensor": tensor})
    shape = _shape({"layers": layers, "hidden": hidden, "heads": heads, "seq": seq}, batch, vocabulary)
    if shape is None:
        _check_alone(parameters, {"batch": batch, "vocabulary": vocabulary, "tensor": tensor})
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    parts = list(_parts(parameters, ranks, each, shape, ways, choice))  # first: an error comes before any table
    for part in parts:
        console.print(part)


def _parts(
    parameters: float | None, ranks: int, each: Bytes, shape: Shape | None, ways: Splits, gpus: Gpus
) -> Iterator[str | Table]:
    """The tables and the lines between them."""
    on_rank = {
        name: shape.parameters(count) if shape and parameters is None else (parameters or 0) / count
        for name, (count, _) in ways.items()
    }
    for count, number in dict.fromkeys((count, on_rank[name]) for name, (count, _) in ways.items()):
        split = f" on each of {count} tensor-parallel ranks" * (count > 1)
        yield f"[bold]Model states[/bold] of {number:,.0f} parameters{split}, by stage of ZeRO"
        yield "data-parallel ranks: {:,}; bytes of a parameter: {}, gradient: {}, optimizer states: {}".format(
            ranks, *each
        )
        yield states_table(number, ranks, each, gpus)
    if sum(each):
        share = ", on a tensor-parallel rank" if len(ways) > 1 else ""
        yield f"[bold]Largest model[/bold] whose states fit, in billions of parameters{share}"
        yield largest_table(ranks, each, gpus)
    if shape:
        described = ", ".join(f"{name} {value:,}" for name, value in shape._asdict().items())
        yield f"[bold]Activations[/bold] on a rank: {described}"
        yield ACTIVATIONS
        yield activations_table(shape, ways)
        yield "[bold]Model states and activations[/bold] at their peak, and the smallest GPU on which they fit, in GB"
        yield totals_table(shape, on_rank, ways, ranks, each, gpus)
    yield NOTES.format(room=100 * gpus.room)


def _shape(required: dict[str, int | None], batch: int, vocabulary: int) -> Shape | None:
    given = {name: value for name, value in required.items() if value is not None}
    if not given:
        return None
    missing = ", ".join(f"--{name}" for name in required if name not in given)
    if missing:
        raise ValueError(f"{', '.join(f'{k}={v}' for k, v in given.items())} alone is no shape; give {missing} too")
    return Shape(batch=batch, vocabulary=vocabulary, **given)


def _check_alone(parameters: float | None, options: dict[str, int]) -> None:
    """Without a shape there must be parameters, and no option that belongs to a shape."""
    need = "give --layers, --hidden, --heads and --seq"
    if parameters is None:
        raise ValueError(f"there is nothing to count; {need}, or --parameters")
    for (name, value), default in zip(options.items(), (BATCH, VOCABULARY, 1), strict=True):
        if value != default:
            raise ValueError(f"{name}={value} belongs to a model's shape, and there is none; {need} too")


def _check(parameters: float | None, each: Bytes, counts: dict[str, int]) -> None:
    if parameters is not None and not (parameters >= 1 and parameters.is_integer()):
        raise ValueError(f"parameters={parameters:g} is no number of parameters; use a whole number, at least 1")
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    for name, value in each._asdict().items():
        if value < 0:
            raise ValueError(f"{name}={value} must not be negative")


def table_of(columns: list[str], left: Container[str] = ("stage", "split", "recomputed")) -> Table:
    """An empty table; all columns but those of text, `left`, are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def gb(size: float) -> str:
    """Bytes in 10⁹."""
    return decimal(size / GB)


def _gib(size: float) -> str:
    return decimal(size / GIB)


def decimal(value: float) -> str:
    """One decimal; two digits where that would leave less."""
    return f"{value:,.1f}" if value >= 1 or not value else f"{value:.2g}"


def main() -> None:
    """Run the command line; exit status 1 and one line on stderr where the options make no model."""
    try:
        tyro.cli(calculate, prog="python -m minitrain.costs.memory")
    except ValueError as error:
        sys.exit(f"error: {error}")
