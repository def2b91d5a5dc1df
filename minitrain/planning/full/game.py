"""The game at the end of the course: choose a layout for a given cluster. Tokens per second are the score.

Five trainings that were published, each with the layout that its authors chose. The dry run is the referee: a layout
that does not fit the GPUs scores nothing, and the time of a step is that of `minitrain.planning.full.time_model`.

    python -m minitrain.planning.full.game                                            # the table of layouts to beat
    python -m minitrain.planning.full.game 39b --dp 32 --pp 2 --tp 8 --microbatches 48 --recompute full

Published are the sizes of tp, pp and dp, the batch, and the operations per second. What the papers' tables leave out
is filled in here: micro-batches of one sequence, 1F1B unless said otherwise, and recomputation as far as GPUs need it.

**Source.** Narayanan et al. 2021, table 1, whose operations per second count full recomputation; Grattafiori et al.
2024, "The Llama 3 herd of models", table 4 and §3.3, where they do not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from minitrain.composition.settings import Layout
from minitrain.costs.memory import GB, ROOM
from minitrain.planning.full import plan_time, published
from minitrain.planning.full.proposals import Proposal, judge
from minitrain.planning.full.published import Run
from minitrain.planning.full.time_model import fitted

# In `published_runs.csv`: Narayanan et al. 2021, table 1, rows 3, 5, 7 and 10; Grattafiori et al. 2024, table 4.
_NUMBERS = {"7.5b": 467, "39b": 221, "145b": 468, "1t": 226, "405b": 417}
_RUNS = {run.number: run for run in published.read()}
ROUNDS = {name: _RUNS[number] for name, number in _NUMBERS.items()}
# By our count its activations are too many for 80 GB; how they made them fit is not published in full.
ROUNDS["405b"] = replace(ROUNDS["405b"], layout=replace(ROUNDS["405b"].layout, recompute="full"))


def play(name: str, layout: Layout) -> Proposal:
    """What a layout reaches in the round called `name`; its tokens per second are the score.

    Raises:
        ValueError: There is no such round, the layout takes other than its GPUs, or does not fit into them.
    """
    if name not in ROUNDS:
        raise ValueError(f"name={name!r} is no round; use {', '.join(ROUNDS)}")
    at, gpus = ROUNDS[name], ROUNDS[name].layout.ranks
    if layout.ranks != gpus:
        raise ValueError(
            f"dp={layout.dp} · pp={layout.pp} · {f'cp={layout.cp} · ' * (layout.cp > 1)}tp={layout.tp} are "
            f"{layout.ranks:,} ranks, but round {name} has {gpus:,} GPUs"
        )
    found = judge(at.model, layout, at.steps, fitted(at.machine))
    held, room = found.held / GB, (1 - ROOM) * at.machine.size / GB
    if held > room:
        raise ValueError(
            f"a rank holds {held:.1f} GB, and {room:.1f} of a GPU's {at.machine.size / GB:.0f} GB can be used "
            f"(the rest is room for what is not counted); use a higher zero, recompute, or a larger tp or pp"
        )
    return found


def flops(at: Run, layout: Layout, seconds: float) -> float:
    """Operations per second and GPU as the paper counts them: Narayanan et al. also what is computed again."""
    work = plan_time.work(at.model, layout, at.steps)
    return (work.done if at.source.startswith("Narayanan") else work.model) / layout.ranks / seconds


COLUMNS = ("round", "GPUs", "sequences", "layout to beat", "published", "here", "tokens/s")


def rows() -> list[tuple[str, ...]]:
    """The layouts to beat, a row for each round under `COLUMNS`; published and here are TFLOP/s of a GPU."""
    found: list[tuple[str, ...]] = []
    for name, at in ROUNDS.items():
        score, layout = play(name, at.layout), at.layout
        chosen = f"{layout}, ZeRO {layout.zero}" if layout.zero else str(layout)
        chosen += f", {layout.schedule} with {layout.chunks} chunks" if layout.schedule == "interleaved" else ""
        gpus = f"{layout.ranks:,} {at.gpu.partition(' ')[0]}"
        numbers = [f"{flops(at, layout, seconds) / 1e12:.0f}" for seconds in (at.seconds, score.bar.step)]
        numbers.append(f"{score.tokens:,.0f}")
        found.append((name, gpus, f"{at.steps.batch:,}", chosen, *numbers))
    return found


@dataclass(frozen=True)
class Command:
    """Show the layouts to beat, or judge one.

    Attributes:
        name: The round that is played; without it the table is shown.
        layout: What you choose.
    """

    name: Annotated[str, tyro.conf.Positional] = ""
    layout: Annotated[Layout, tyro.conf.arg(name="")] = field(default_factory=Layout)


def main(asked: Command) -> None:
    """Print the table, or the score."""
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    if not asked.name:
        table = Table(*COLUMNS, box=box.SIMPLE)
        for row in rows():
            table.add_row(*row)
        console.print(table)
        return
    try:
        score = play(asked.name, asked.layout)
    except ValueError as error:
        # A player's mistake needs no traceback.
        raise SystemExit(f"no score: {error}") from None
    # By the same model of time, since a measured speed could not be compared with it.
    best = play(asked.name, ROUNDS[asked.name].layout).tokens
    parts = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in score.bar._asdict().items())
    console.print(
        f"{score.tokens:,.0f} tokens per second, {100 * (score.tokens / best - 1):+.1f} % of the layout to beat"
    )
    console.print(f"a step takes {score.bar.step:.2f} s ({parts}); MFU {100 * score.mfu:.1f} %")


if __name__ == "__main__":
    main(tyro.cli(Command, prog="python -m minitrain.planning.full.game"))
