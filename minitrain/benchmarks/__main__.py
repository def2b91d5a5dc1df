"""Runs the benchmarks and prints one table: `python -m minitrain.benchmarks` (or `make bench`)."""

from __future__ import annotations

import json as to_json
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.benchmarks.compare import Comparison
from minitrain.comm.torchrun import end_with_torchrun, given_ranks
from minitrain.comm.world import World
from minitrain.ranks.ranks import Ranks

Name = Literal[
    "checkpointing",
    "collectives",
    "composition",
    "context_parallel",
    "mixture_of_experts",
    "optimizers",
    "recomputation",
]


def measure(world: World, name: str) -> list[Comparison]:
    """Run one benchmark on this rank."""
    module = import_module(f"minitrain.benchmarks.{name}")
    if world.rank == 0:
        about = (module.__doc__ or name).splitlines()[0]
        print(f"{world.size} ranks, {name}: {about}", file=sys.stderr, flush=True)
    return module.measure(world)


def main(
    names: tuple[Name, ...] = get_args(Name),
    ranks: tuple[int, ...] = (2, 4),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: Path | None = None,
) -> None:
    """Compare minitrain with torch's own: interleaved in one run, medians, ratios.

    Args:
        names: Which benchmarks to run.
        ranks: Numbers of ranks to run each on. Under torchrun its number counts.
        device: Where tensors live. auto takes a GPU where there is one.
        json: Save the table here.
    """
    rows: list[Comparison] = []
    if given_ranks() is not None:
        end_with_torchrun()
        with World.start(device=device, check=False) as world:
            rows = [row for name in names for row in measure(world, name)]
            if world.rank:
                sys.exit()
    else:
        for size in ranks:
            with Ranks(size, device=device, check=False) as pool:
                for name in names:
                    rows += pool.run(measure, name)[0]
    show(rows)
    if json:
        json.write_text(to_json.dumps([{**vars(row), "ratio": row.ratio} for row in rows], indent=1) + "\n", "utf-8")


def show(rows: list[Comparison]) -> None:
    """Print the table; times in milliseconds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("what", "ours, ms", "theirs, ms", "against", "ratio", "to reach", "reached"):
        table.add_column(column, justify="right" if column[-2:] in ("ms", "io") else "left")
    for row in rows:
        goal = "" if row.target is None else f"{'≥' if row.speed else '≤'} {row.target:.2f}"
        reached = {True: "yes", False: "no", None: ""}[row.reached]
        kind = "× speed" if row.speed else "× cost"
        times = [f"{1e3 * row.ours:.3f}", f"{1e3 * row.theirs:.3f}"]
        table.add_row(row.what, *times, row.against, f"{row.ratio:.2f} {kind}", goal, reached)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    tyro.cli(main, prog="python -m minitrain.benchmarks")
