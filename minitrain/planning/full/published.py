"""Published training runs, and what the model of time says of each: `python -m minitrain.planning.full.published`.

`published_runs.csv` has 296 runs that others measured, with the layout, the GPU, where each number is printed, and
whether it was read there ("read") or copied from another text ("secondary"). None was measured in this project.

The constants of `minitrain.planning.full.time_model` are fitted on the runs in 16 bits whose number is odd and below
466 (`fit`) and tested on the others. Runs in 8 bits are for comparison: products with twice the peak, attention's not.

    python -m minitrain.planning.full.published --runs my.csv --figure errors.svg

adds your own rows, which `python -m minitrain.plan --measure-to my.csv` writes: the same columns; of a GPU that we do
not know also flops, memory_GBps and link_GBps.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.comm.terminal import complain
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import time_bar
from minitrain.costs.fabric import Fabric
from minitrain.costs.roofline import MACHINES, Machine
from minitrain.costs.time_bar import Reached
from minitrain.planning.full.time_model import Cluster, any_step_time, fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = Path(__file__).with_name("published_runs.csv")
FITTED = 466  # runs from this number on had no part in the fit


@dataclass(frozen=True)
class Run:
    """A training that was measured.

    Attributes:
        number: Its id in the file.
        source: Who published it.
        sure: "read" at its source, or "secondary".
        seconds: Of a step, as measured.
        half: Whether about half of each layer was computed again; then the time is the mean of none and all.
        low: Whether products were made in 8 bits.
        note: What was assumed, or, if `usable` is false, why the run is left out.
    """

    number: int
    source: str
    sure: str
    name: str
    gpu: str
    machine: Machine
    per_node: int
    model: Model
    layout: Layout
    steps: Steps
    seconds: float
    half: bool
    low: bool
    usable: bool
    note: str

    @property
    def kind(self) -> str:
        """Its layout in a word."""
        axes = [axis for axis in ("pp", "tp", "cp") if getattr(self.layout, axis) > 1]
        nodes = "in a node" if self.layout.ranks <= self.per_node else "over nodes"
        return " + ".join(axes) if axes else f"{'FSDP' if self.layout.zero >= 2 else 'dp'} {nodes}"

    @property
    def speed(self) -> float:
        """Tokens per second and GPU."""
        return self.steps.batch * self.model.sizes.positions / self.layout.ranks / self.seconds

    @property
    def fitting(self) -> bool:
        """Whether constants are fitted on it."""
        return self.usable and not self.low and self.number < FITTED and self.number % 2 == 1

    @property
    def testing(self) -> bool:
        """Whether they are tested on it."""
        return self.usable and not self.low and not self.fitting


def read(path: Path = RUNS) -> list[Run]:
    """The runs of a file.

    Raises:
        ValueError: A column is missing, or a row cannot be understood; names the row.
    """
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    found = []
    for line in lines:
        try:
            found.append(_run(line))
        except KeyError as missing:
            raise ValueError(f"runs={str(path)!r} has no column {missing}; those of {RUNS.name} are needed") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"runs={str(path)!r}, row {line.get('id')}: {error}") from None
    return found


def _run(row: dict[str, str]) -> Run:
    def number(name: str) -> int:
        return int(row[name])

    dp, pp, vp, batch, sequences = map(number, ("dp", "pp", "vp", "gbs", "mbs"))
    # torchtitan's FSDP with a pipeline gathers once in a step, as stage 1 does.
    zero = 1 if pp > 1 and number("zero") >= 2 else number("zero")
    low, tp, recompute = row["precision"] == "fp8", number("tp"), row["recompute"]
    how = recompute if recompute in ("none", "selective", "full") else "none"
    # Only rows of one's own name these two; of the published ones the chunks tell.
    schedule, mode = row.get("schedule") or ("interleaved" if vp > 1 else "1f1b"), row.get("cp_mode") or "zigzag"
    chunks = min(vp, number("layers") // pp) if schedule == "interleaved" else Layout.chunks
    cut, more = tp > 1 and row["seq_parallel"] == "True", {"cp": number("cp"), "cp_mode": mode, "chunks": chunks}
    layout = Layout(dp, pp, tp, 1, cut, zero, schedule, microbatches=batch // (dp * sequences), recompute=how, **more)  # type: ignore[arg-type]
    sizes = number("layers"), number("hidden"), number("heads"), number("seq"), number("vocab")
    mlp = "swiglu" if row["mlp"] == "swiglu" else "gelu"
    widths = {"kv_heads": number("kv_heads"), "mlp_hidden": number("ffn"), "mlp": mlp}
    # Of the preset only the name is used: all sizes are given. With dropout, attention was written out.
    dropout = 0.1 if "dropout" in row["note"] else 0.0
    model = Model("175b", *sizes, dropout, row["tied"] == "True", positions_kind=row["positions"], **widths)  # type: ignore[arg-type]
    steps = Steps(batch=batch, dtype="bfloat16", reduce_dtype="float32" if row["reduce"] == "fp32" else "same")
    return Run(
        number("id"),
        row["group"],
        row["how_sure"],
        row["model"],
        row["gpu"],
        _machine(row)._replace(network=1e9 * float(row["network_GBps"])),
        number("per_node"),
        model,
        layout,
        steps,
        float(row["step_s"]),
        recompute == "half",
        low,
        row["usable"] == "yes",
        row["note"],
    )


def _machine(row: dict[str, str]) -> Machine:
    name = row["gpu"].removesuffix(" 500 W")
    if not row.get("flops"):
        if name in MACHINES:
            return MACHINES[name]
        if row["usable"] != "yes":
            return Machine(name, 0.0, 0.0, 0.0, 0.0, 0.0)  # nothing is predicted for it
        raise ValueError(f"gpu={name!r} is none of {', '.join(MACHINES)}; give flops, memory_GBps and link_GBps")
    return Machine(name, float(row["flops"]), 1e9 * float(row["memory_GBps"]), 0.0, 1e9 * float(row["link_GBps"]), 0.0)


def seconds(run: Run, cluster: Cluster | None = None) -> float:
    """What the model of time says that a step takes; `cluster` in place of the fitted one."""
    cluster = cluster or fitted(run.machine, Fabric(run.per_node))
    if run.low:
        machine, core = cluster.machine, cluster.reached.core
        reached = cluster.reached._replace(core=core and core / 2)
        cluster = replace(cluster, machine=machine._replace(flops=2 * machine.flops), reached=reached)
    layouts = [run.layout, *([replace(run.layout, recompute="full")] if run.half else [])]
    return statistics.fmean(any_step_time(run.model, layout, run.steps, cluster).step for layout in layouts)


def off(run: Run, cluster: Cluster | None = None) -> float:
    """The relative error of the predicted speed."""
    return run.seconds / seconds(run, cluster) - 1


class Errors(NamedTuple):
    """Errors of some runs: how many, the median with its sign, and of sizes the median, nine of ten, and the worst."""

    runs: int
    bias: float
    median: float
    ninth: float
    worst: float


def errors(found: Sequence[float]) -> Errors:
    """Of what `off` gives for some runs."""
    sizes = sorted(map(abs, found))
    ninth = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return Errors(len(found), statistics.median(found), statistics.median(sizes), ninth, sizes[-1])


def by(runs: Iterable[Run], key: Callable[[Run], str], each: Callable[[Run], float] = off) -> dict[str, Errors]:
    """Errors of each kind of run."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(each(run))
    return {name: errors(found) for name, found in groups.items()}


class Constants(NamedTuple):
    """What is fitted: parts of the peak for products and attention's core, bytes, and the price of hidden messages."""

    products_a: float
    products_h: float
    core_a: float
    core_h: float
    moved: float
    contended: float

    def cluster(self, run: Run) -> Cluster:
        """A run's GPUs with these constants."""
        ours = run.machine.name[:1] == "A"
        products, core = (self.products_a, self.core_a) if ours else (self.products_h, self.core_h)
        return Cluster(run.machine, Fabric(run.per_node), Reached(products, core, self.moved, self.contended))


_A, _H = time_bar.REACHED["A"], time_bar.REACHED["H"]
CONSTANTS = Constants(_A[0], _H[0], _A[1], _H[1], time_bar.MOVED, time_bar.CONTENDED)


def loss(runs: Sequence[Run], constants: Constants) -> float:
    """The mean of |log(ours / published)|, in which a source with n runs weighs √n, so that no sweep decides alone."""
    counts = {source: sum(run.source == source for run in runs) for source in {run.source for run in runs}}
    weights = [counts[run.source] ** -0.5 for run in runs]
    sizes = [abs(math.log1p(off(run, constants.cluster(run)))) for run in runs]
    return sum(weight * size for weight, size in zip(weights, sizes, strict=True)) / sum(weights)


def fit(runs: Sequence[Run], start: Constants = CONSTANTS, step: float = 0.1) -> Constants:
    """The constants with the least `loss`: each in turn larger or smaller, by ever less."""
    best, least = start, loss(runs, start)
    while step > 0.01:
        before = least
        for name in Constants._fields:
            for factor in (1 + step, 1 / (1 + step)):
                tried = best._replace(**{name: factor * getattr(best, name)})
                if (found := loss(runs, tried)) < least:
                    best, least = tried, found
        step = step if least < before else step / 2
    return best


COLUMNS = ("", "runs", "bias", "median", "nine of ten", "worst")


def rows(runs: Sequence[Run], each: Callable[[Run], float] = off) -> list[tuple[str, ...]]:
    """The scoreboard under `COLUMNS`: errors of the speed in per cent, by half, source, GPU and kind of layout."""
    usable = [run for run in runs if run.usable]
    full = [run for run in usable if not run.low]
    found = by(full, lambda run: f"16 bits, {'' if run.fitting else 'not '}fitted on", each)
    for key in ("source", "gpu", "kind"):
        found |= by(full, attrgetter(key), each)
    found |= by([run for run in usable if run.low], lambda run: f"8 bits, {run.source}", each)
    return [
        (name, str(some.runs), f"{100 * some.bias:+.0f} %", *(f"{100 * part:.0f} %" for part in some[2:]))
        for name, some in found.items()
    ]


def picture(runs: Sequence[Run], each: Callable[[Run], float] = off) -> Figure:
    """Tokens per second and GPU, predicted against measured, each run a point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 6), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    usable = [run for run in runs if run.usable]
    for source, marker in zip(dict.fromkeys(run.source for run in usable), "osD^vPX<>*hd", strict=False):
        own = [run for run in usable if run.source == source]
        measured = [run.speed for run in own]
        axes.loglog(
            measured, [run.speed * (1 + each(run)) for run in own], marker, markersize=5, alpha=0.6, label=source
        )
    ends = [min(run.speed for run in usable) / 1.5, 1.5 * max(run.speed for run in usable)]
    axes.loglog(ends, ends, color="black", linewidth=0.8, label="equal")
    axes.fill_between(ends, [0.8 * end for end in ends], [1.2 * end for end in ends], color="#bbbbbb", alpha=0.4, lw=0)
    axes.set(xlabel="measured, tokens per second and GPU", ylabel="predicted, gray: within 20 %")
    axes.legend(fontsize="small", frameon=False)
    return figure


@dataclass(frozen=True)
class Command:
    """Compare the model of time with published runs.

    Attributes:
        runs: A file with runs of your own, which are shown one by one.
        refit: Fit the constants anew on the runs with odd numbers, which takes some minutes, and print them.
        figure: Save the picture of predicted and measured speeds (.svg, .png or .pdf).
    """

    runs: Path | None = None
    refit: bool = False
    figure: Path | None = None


def main(asked: Command) -> int:
    """Print the scoreboard; returns the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 118, highlight=False)
    try:
        all_runs, own = read(), read(asked.runs) if asked.runs else []
    except (ValueError, OSError) as error:
        complain(error)
        return 2
    if asked.refit:
        console.print(fit([run for run in all_runs if run.fitting]))
        return 0
    found = {run.number: off(run) for run in all_runs if run.usable}
    table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows(all_runs, lambda run: found[run.number]):
        table.add_row(*row)
    console.print(table)
    worst = sorted((run for run in all_runs if run.usable), key=lambda run: -abs(found[run.number]))[:10]
    console.print("your runs: error, measured tokens/s of a GPU" if own else "the ten that are furthest off")
    for run in own or worst:
        speed = f"{run.speed:,.0f}  " if own else ""
        said = f"{speed}{run.source}, {run.name}, {run.layout.ranks} × {run.gpu}, {run.layout}"
        # A run of one's own that nothing is predicted for is listed all the same, and its note says why.
        error = f"{100 * (off(run) if own else found[run.number]):+5.0f} %" if run.usable else "no figure"
        console.print(f"{error}  {said}{f' ({run.note})' if run.note else ''}")
    left_out = sum(not run.usable for run in all_runs)
    console.print(f"{left_out} more runs are left out, each with its reason in {RUNS.name}")
    if asked.figure is not None:
        from minitrain.comm.pictures import save_figure

        save_figure(picture(all_runs, lambda run: found[run.number]), asked.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Command, prog="python -m minitrain.planning.full.published")))
