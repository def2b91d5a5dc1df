"""Tables that the package itself works out: the game's layouts to beat, and published trainings next to our times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(package: Path) -> str:
    """The table as Markdown.

    Args:
        package: folder of the package that has the game; it is imported, without torch.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.planning.full.game import COLUMNS, rows

    return _markdown(COLUMNS, rows(), right={"sequences", "published", "here", "tokens/s"})


def rounds(package: Path) -> dict[str, Any]:
    """What `docs/javascripts/referee.js` has to know of each round."""
    sys.path.insert(0, str(package.parent))
    from minitrain.costs.fabric import DEFAULT
    from minitrain.costs.memory import ROOM
    from minitrain.costs.time_bar import fitted
    from minitrain.planning.full.game import ROUNDS
    from minitrain.planning.full.plan_time import shape_of
    from minitrain.planning.plan import gradient_item

    names = {"microbatches", "zero", "schedule", "chunks", "recompute"} | {"dp", "pp", "cp", "tp"}
    return {
        name: {
            "gpus": at.layout.ranks,
            "gpu": at.gpu,
            "batch": at.steps.batch,
            "shape": shape_of(at.model)._asdict(),
            "machine": at.machine._asdict(),
            "fabric": DEFAULT._asdict(),
            "reached": fitted(at.machine)._asdict(),
            "gradient": gradient_item(at.steps),
            "room": ROOM,
            "beat": {each: getattr(at.layout, each) for each in sorted(names)}
            | {"sequence": at.layout.sequence_parallel},
        }
        for name, at in ROUNDS.items()
    }


def data(package: Path) -> str:
    """The element of the page that holds `rounds`."""
    return f'<script type="application/json" id="game-data">{json.dumps(rounds(package))}</script>'


def published(package: Path) -> str:
    """How far our model of time is off the runs that were published, as Markdown.

    Args:
        package: as for `table`.
    """
    sys.path.insert(0, str(package.parent))
    from minitrain.planning.full.published import COLUMNS, read, rows

    return _markdown(COLUMNS, rows(read()), right=set(COLUMNS[1:]))


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], right: set[str]) -> str:
    lines = [columns, ["---:" if name in right else "---" for name in columns], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
